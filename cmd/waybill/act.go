package main

import (
	"context"
	"errors"
)

// act is what every command does that changes what others wait for: it says what
// that would come to, asks, does it, and says what was done. R is what it comes to in
// one database.
type act[R any] struct {
	deed

	// do fills in all by provider, and says what was done unless as JSON. Without
	// dryRun, all has what it would come to.
	do func(dryRun bool, all map[string]R) error
	// tell says what it would come to, unless as JSON, and returns the question; "": there
	// is nothing to do.
	tell func(all map[string]R) (question string, err error)
}

func (a act[R]) run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if err := a.check(); err != nil {
		return err
	}
	all := map[string]R{}
	if err := a.do(true, all); err != nil {
		return err
	}
	question, err := a.tell(all)
	if err != nil {
		return err
	}
	if question != "" && !a.DryRun {
		if !a.Yes {
			if err := confirm(ctx, stderr, question); err != nil {
				return err
			}
		}
		err = a.do(false, all)
	}
	if c.JSON {
		err = errors.Join(err, writeJSON(stdout, map[string]any{"dry_run": a.DryRun, "providers": all}))
	}
	return err
}
