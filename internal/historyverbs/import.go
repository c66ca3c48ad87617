// Package historyverbs is what operators do with a history.
package historyverbs

import (
	"context"
	"errors"
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

// held is for how long projections stay held at the beginning when an import dies. A batch
// takes a fraction of it.
const held = 30 * time.Second

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
	if err := record.Check("history: import", i.DryRun); err != nil {
		return done, err
	}
	targets, err := keeping(ctx, p, i.Context)
	if err != nil {
		return done, err
	}
	run := historydb.Import{
		Context: i.Context, Broker: targets.Broker, Progress: i.Progress,
		Hold: func(ctx context.Context, tx bun.Tx) error { return projection.HoldAtBeginning(ctx, tx, held) },
	}
	if i.DryRun {
		return run.Count(ctx, p.Reader())
	}
	action, noted := int64(0), int64(0)
	run.Note = func(ctx context.Context, tx bun.Tx, events int64) error {
		id, err := record.Add(ctx, tx, action, noted, events)
		action, noted = id, noted+events
		return err
	}
	done, err = run.Run(ctx, p.DB())
	let, cancel := context.WithTimeout(context.WithoutCancel(ctx), held) // then they begin by themselves
	defer cancel()
	return done, errors.Join(err, projection.LetBegin(let, p.DB()))
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
		err = fmt.Errorf("history: the database keeps no history of context %s: set uow.Config.History, and run engine.Migrate or start an engine of it; it has begun seconds later", name)
	}
	return t, err
}
