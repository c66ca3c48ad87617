package engine

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// OutboxStore is the outbox of a database, for programs that look into it and change
// it as `waybill outbox` does. It is safe for concurrent use, and may be used beside
// engines and writers.
type OutboxStore interface {
	// Check returns an error that names the remedy unless the tables are at this
	// build's version.
	Check(ctx context.Context) error
	// Find returns the rows that f chooses, by seq, without their payloads.
	Find(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error)
	// Message returns all rows of a message, or outbox.ErrNoMessage.
	Message(ctx context.Context, messageID string) (*outbox.Message, error)
	// Stats is the state of every target. What it costs depends on the rows that are not
	// published.
	Stats(ctx context.Context) (map[string]outbox.Stats, error)
	// Held counts, per target, held keys and what waits behind them.
	Held(ctx context.Context) (map[string]outbox.Held, error)
	// Owners is every partition that has an owner or undelivered rows.
	Owners(ctx context.Context) ([]outbox.Owned, error)
	// Change retries, abandons or skips the rows that f chooses, in transactions of
	// bounded size, and records who did it.
	Change(ctx context.Context, f outbox.Filter, c outbox.Change) (outbox.ChangeResult, error)
	// Actions are what operators did, the latest first.
	Actions(ctx context.Context, limit int) ([]outbox.Action, error)
	// Purge removes what has expired, as engines do by themselves; CleanUp removes what
	// an operator chooses, and records it.
	Purge(ctx context.Context, r outbox.Retention) (outbox.Purged, error)
	CleanUp(ctx context.Context, c outbox.CleanUp) (outbox.CleanedUp, error)
	// Backfill gives an external target that is joining the earlier events,
	// and then makes it live. [Backfill] knows what b has to say.
	Backfill(ctx context.Context, b outbox.Backfill) (outbox.Backfilled, error)
}

// Outbox returns the outbox of a provider's database.
func Outbox(p uow.Provider) OutboxStore { return outboxdb.New(p.DB(), p.Reader()) }

// SetTargets changes which brokers a context sends to in a provider's database, as
// `waybill migrate --set-targets` does. Stop the context's processes first: those that
// run are refused within seconds, and what they write until then misses a broker that is
// added. A broker that is added gets the events from then on, or, if t.Joining names it,
// those before as well, by [Backfill].
//
// One is taken out when nothing waits for it any more: that is refused before. Timers of
// the context that wait follow to its new own broker. The change is on record, as actor's.
func SetTargets(ctx context.Context, p uow.Provider, context string, t outbox.Targets, actor string) error {
	return outboxdb.SetTargets(ctx, p.DB(), context, t, actor, timersFollow(context, t.Broker))
}

func timersFollow(name, to string) func(context.Context, bun.Tx, outbox.Targets) error {
	return func(ctx context.Context, tx bun.Tx, was outbox.Targets) error {
		return timerdb.Retarget(ctx, tx, name, was.Broker, to)
	}
}
