package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

type migrateCmd struct {
	SetTargets map[string]string `placeholder:"CONTEXT=BROKER,…" help:"Change which brokers a context sends to: its own, then the external ones. Stop all its processes first."`
}

// migrated is what is told of one provider.
type migrated struct {
	Partitions int                       `json:"partitions"`
	Targets    map[string]outbox.Targets `json:"targets"` // by context
}

func (m migrateCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	d, err := c.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	targets := map[string]outbox.Targets{}
	for context, brokers := range m.SetTargets {
		all := strings.Split(brokers, ",")
		targets[context] = outbox.Targets{Broker: all[0], External: all[1:]}
		if context == d.context && !targets[context].Equal(d.sends) {
			return &usageError{fmt.Errorf("--set-targets says that %s sends to %s, and the configuration file says %v: make them equal", context, brokers, d.sends)}
		}
	}
	done := map[string]migrated{}
	var errs []error
	for _, p := range d.providers {
		now, err := migrate(ctx, d, p, targets)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			continue
		}
		done[p.Name()] = now
		if !c.JSON {
			fmt.Fprintf(stdout, "Provider %s is up to date: %d partitions.\n", p.Name(), now.Partitions)
			for _, context := range slices.Sorted(maps.Keys(now.Targets)) {
				fmt.Fprintf(stdout, "  %s sends to %v.\n", context, now.Targets[context])
			}
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": done}))
	}
	return errors.Join(errs...)
}

func migrate(ctx context.Context, d *databases, p uow.Provider, targets map[string]outbox.Targets) (now migrated, err error) {
	if err := engine.MigrateProvider(ctx, p, d.partitions); err != nil {
		return now, err
	}
	for context, t := range targets {
		if err := outbox.SetTargets(ctx, p.DB(), context, t); err != nil {
			return now, err
		}
	}
	if d.context != "" {
		if err := outbox.InitTargets(ctx, p.DB(), d.context, d.sends); err != nil {
			return now, err
		}
	}
	if now.Partitions, err = outbox.Partitions(ctx, p.Reader()); err != nil {
		return now, err
	}
	now.Targets, err = outbox.ReadTargets(ctx, p.Reader())
	return now, err
}

func writeJSON(stdout out, v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
