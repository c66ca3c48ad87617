package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
)

type migrateCmd struct{}

// migrated is what is told of one provider.
type migrated struct {
	Partitions int `json:"partitions"`
}

func (migrateCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	d, err := c.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	done := map[string]migrated{}
	var errs []error
	for _, p := range d.providers {
		err := engine.MigrateProvider(ctx, p, d.partitions)
		var n int
		if err == nil {
			n, err = outbox.Partitions(ctx, p.Reader())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			continue
		}
		done[p.Name()] = migrated{n}
		if !c.JSON {
			fmt.Fprintf(stdout, "Provider %s is up to date: %d partitions.\n", p.Name(), n)
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": done}))
	}
	return errors.Join(errs...)
}

func writeJSON(stdout out, v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
