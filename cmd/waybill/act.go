package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"reflect"
	"syscall"
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
	signal.Ignore(syscall.SIGPIPE) // Who stops reading, as head does, doesn't end it in its middle.
	all := map[string]R{}
	if err := a.do(true, all); err != nil {
		if _, wrong := errors.AsType[*usageError](err); wrong || a.DryRun {
			return err
		}
		return fmt.Errorf("nothing was changed: %w", err)
	}
	question, err := a.tell(all)
	switch {
	case stdout.failed != nil:
		return fmt.Errorf("what would be changed can't be written to standard output, so nothing was changed: %w", stdout.failed)
	case err != nil:
		return err
	}
	does := question != "" && !a.DryRun
	if does {
		if !a.Yes {
			if err := confirm(ctx, stderr, question); err != nil {
				return err
			}
		}
		before, plan := stdout.wrote, maps.Clone(all)
		err = a.do(false, all)
		if err != nil { // What it didn't come to is as planned still: what was done has an action's number, too.
			maps.DeleteFunc(all, func(provider string, r R) bool { return reflect.DeepEqual(r, plan[provider]) })
		}
		if err == nil && !c.JSON && stdout.wrote == before {
			fmt.Fprintln(stdout, "Nothing was changed: what was shown isn't as it was any more, as somebody else has changed it meanwhile.")
		}
	}
	if c.JSON {
		if unwritten := writeJSON(stdout, map[string]any{"dry_run": a.DryRun, "providers": all}); !does {
			err = errors.Join(err, unwritten)
		}
	}
	if does && stdout.failed != nil {
		err = errors.Join(err, fmt.Errorf("what was done can't be written to standard output; `waybill outbox log` has it, or `waybill dead-letters log` what concerns those: %w", stdout.failed))
	}
	return err
}
