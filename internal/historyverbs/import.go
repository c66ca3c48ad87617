// Package historyverbs is what operators do with a history.
package historyverbs

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

const (
	// held is for how long projections stay held at the beginning when an import ends early, to
	// run it again, as they would never see what comes after they have begun. No lease is a
	// minute long.
	held = 50 * time.Second
	// let is how long it may take to let them begin.
	let = 30 * time.Second
	// patience is how long PostgreSQL waits for a lock.
	patience = time.Second
)

// Import is one of historydb, by an operator.
type Import struct {
	Context  string
	Actor    string
	DryRun   bool                     // Count, and change nothing.
	Progress func(historydb.Imported) // May be nil.
}

// Run imports into the history of a provider's database.
func (i Import) Run(ctx context.Context, p uow.Provider) (done historydb.Imported, err error) {
	record := operate.Record{Table: "outbox_actions", Count: "rows", Actor: i.Actor, Action: "history-import", Asked: map[string]string{"context": i.Context}}
	what := "history: import of context " + i.Context
	if err := record.Check(what, i.DryRun); err != nil {
		return done, err
	}
	targets, err := keeping(ctx, p, i.Context)
	if err != nil {
		return done, err
	}
	own, err := outboxdb.OwnRows(ctx, p.Reader(), i.Context, targets.Broker)
	if err != nil {
		return done, err
	}
	batches := operate.Run{DB: p.DB(), What: what, Done: "events imported", Record: record, LockWait: patience}
	batches.After = func() {
		if batches.Changed > 0 {
			batches.GoOn = fmt.Sprintf("run it again for the others within %v, for which projections that have read nothing yet wait", held)
		}
	}
	run := historydb.Import{
		Context: i.Context, Own: own, Progress: i.Progress, Step: batches.Step,
		Hold: func(ctx context.Context, tx bun.Tx) error { return projection.HoldAtBeginning(ctx, tx, held) },
	}
	if i.DryRun {
		return run.Count(ctx, p.Reader())
	}
	done, err = run.Run(ctx)
	if done.Action = batches.Action; err != nil {
		return done, err
	}
	begin, cancel := context.WithTimeout(context.WithoutCancel(ctx), let) // later they begin by themselves
	defer cancel()
	return done, projection.LetBegin(begin, p.DB())
}

// keeping are the targets of a context whose history has begun.
func keeping(ctx context.Context, p uow.Provider, name string) (outbox.Targets, error) {
	for _, set := range []interface {
		Check(ctx context.Context, db bun.IDB) error
	}{outboxdb.Migrations(), historydb.Migrations(), projection.Migrations()} {
		if err := set.Check(ctx, p.Reader()); err != nil {
			return outbox.Targets{}, err
		}
	}
	t, found, err := outboxdb.FindTargets(ctx, p.Reader(), name)
	if err == nil && (!found || t.History != outbox.HistoryOn) {
		err = fmt.Errorf("history: %w", keepsNone(name))
	}
	return t, err
}

func keepsNone(name string) error {
	return fmt.Errorf("the database keeps no history of context %s: set uow.Config.History, and run engine.Migrate or start an engine of it; it has begun seconds later", name)
}
