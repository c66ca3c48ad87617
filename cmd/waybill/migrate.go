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
	History    string            `enum:",copy,none" default:"" placeholder:"copy|none" help:"Which events of the time before brokers get that --set-targets adds: none, or all that are still there; then they are joining until 'outbox backfill' has copied them."`
}

const (
	copyHistory = "copy"
	noHistory   = "none"
)

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
	if m.History != "" && len(m.SetTargets) == 0 {
		return &usageError{errors.New("--history is about brokers that --set-targets adds: give both")}
	}
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
		now, err := m.migrate(ctx, d, p, targets)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			continue
		}
		done[p.Name()] = now
		if !c.JSON {
			fmt.Fprintf(stdout, "Provider %s is up to date: %d partitions.\n", p.Name(), now.Partitions)
			for _, context := range slices.Sorted(maps.Keys(now.Targets)) {
				fmt.Fprintf(stdout, "  %s sends to %v.\n", context, now.Targets[context])
				for _, j := range now.Targets[context].Joining {
					fmt.Fprintf(stdout, "  %s is joining: `waybill outbox backfill` copies the events of the time before and lets it live.\n", j)
				}
			}
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": done}))
	}
	return errors.Join(errs...)
}

func (m migrateCmd) migrate(ctx context.Context, d *databases, p uow.Provider, targets map[string]outbox.Targets) (now migrated, err error) {
	if err := engine.MigrateProvider(ctx, p, d.partitions); err != nil {
		return now, err
	}
	for context, t := range targets {
		if t.Joining, err = m.joining(ctx, p, context, t); err != nil {
			return now, err
		}
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

// joining are the brokers of t that come with the history. Where there is one,
// somebody has to decide.
func (m migrateCmd) joining(ctx context.Context, p uow.Provider, context string, t outbox.Targets) ([]string, error) {
	all, err := outbox.ReadTargets(ctx, p.Reader())
	if err != nil {
		return nil, nil //nolint:nilerr // what can't be read is about to be written anew
	}
	added := slices.DeleteFunc(slices.Clone(t.External), func(e string) bool { return slices.Contains(all[context].External, e) })
	switch {
	case len(added) == 0 || m.History == noHistory:
		return nil, nil
	case m.History == copyHistory:
		return added, nil
	}
	var events bool
	err = p.Reader().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox WHERE stream_category LIKE ?)", context+"::%").Scan(&events)
	if err == nil && events {
		err = &usageError{fmt.Errorf("there are events of %s which %s would not get: add --history copy, and `waybill outbox backfill` copies them before it gets those to come; or --history none", context, strings.Join(added, ", "))}
	}
	return nil, err
}

func writeJSON(stdout out, v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
