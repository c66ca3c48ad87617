package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// newsEvery is the time between two lines about a back-fill that runs.
const newsEvery = time.Second

type backfillCmd struct {
	Broker      string `arg:"" optional:"" help:"External broker. Defaults to all of the configuration file."`
	FromHistory bool   `help:"Copy all events that the history has, and not only those that are still in the outbox. What has begun goes on as it began."`
	DryRun      bool   `help:"Change nothing; show how much would be copied."`
	onRecord
}

// backfilled is what is told of one broker.
type backfilled struct {
	Events int64      `json:"events"`
	Oldest *time.Time `json:"oldest"`
	Latest *time.Time `json:"latest"`
	// Abandoned were given up when the broker was a target before.
	Abandoned int64 `json:"abandoned"`
}

func (b backfillCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) (err error) {
	if err := b.check(b.DryRun); err != nil {
		return err
	}
	d, err := c.open(ctx, "", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.context == "" {
		return &usageError{errors.New("outbox backfill needs --config with a domain and its external_brokers: they say what a broker gets, and in which form")}
	}
	signal.Ignore(syscall.SIGPIPE) // As in act.
	targets := d.external
	if b.Broker != "" {
		targets = slices.DeleteFunc(slices.Clone(targets), func(t outbox.Target) bool { return t.Broker != b.Broker })
	}
	if len(targets) == 0 {
		return &usageError{fmt.Errorf("the configuration file has no external broker %s: add it to outbox.external_brokers", cmp.Or(b.Broker, "for "+d.context))}
	}
	all := map[string]map[string]backfilled{} // by provider and broker
	var errs []error
	for _, p := range d.providers {
		all[p.Name()] = map[string]backfilled{}
		for _, t := range targets {
			done, err := b.backfill(ctx, p, outbox.Backfill{Context: d.context, Target: t, Actor: b.actor(), FromHistory: b.FromHistory}, stderr)
			if err != nil {
				errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
				continue
			}
			told := backfilled{Events: done.Events, Abandoned: done.Abandoned}
			if done.Events > 0 {
				told.Oldest, told.Latest = &done.Oldest, &done.Latest
			}
			all[p.Name()][t.Broker] = told
			if !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s\n", p.Name(), b.sentence(t.Broker, done))
			}
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": all}))
	}
	return errors.Join(errs...)
}

func (b backfillCmd) backfill(ctx context.Context, p uow.Provider, what outbox.Backfill, stderr news) (outbox.Backfilled, error) {
	store := outboxdb.New(p.DB(), p.Reader())
	if err := store.Check(ctx); err != nil {
		return outbox.Backfilled{}, err
	}
	if b.DryRun {
		return store.CountBackfill(ctx, what)
	}
	var last time.Time
	before, line := "", newProgress(stderr)
	defer line.clear()
	what.Progress = func(done outbox.Backfilled, waits string) {
		text := fmt.Sprintf("%s: %d events copied", what.Target.Broker, done.Events)
		if waits != "" {
			text += "; waiting for " + waits
		}
		line.tell("%s", text)
		if line.w != nil || waits == before && time.Since(last) < newsEvery {
			return
		}
		before, last = waits, time.Now()
		fmt.Fprintln(stderr, text)
	}
	return store.Backfill(ctx, what)
}

func (b backfillCmd) sentence(broker string, done outbox.Backfilled) string {
	raised := ""
	if done.Events > 0 {
		raised = fmt.Sprintf(", raised from %s to %s", when(done.Oldest), when(done.Latest))
	}
	if b.DryRun {
		return fmt.Sprintf("%s would get %s%s.", broker, number(done.Events, "event", "events"), raised)
	}
	// One that goes on where another was ended doesn't know how many that one has copied.
	told := fmt.Sprintf("%s got %s in this run%s, and is live.", broker, number(done.Events, "event", "events"), raised)
	if done.Abandoned > 0 {
		told += fmt.Sprintf(" %s given up when it was a target before, and not copied: `waybill outbox list --target %s --status abandoned` shows which, and `waybill outbox retry` sends them behind the others.", were(done.Abandoned), broker)
	}
	return told
}
