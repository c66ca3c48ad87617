package subscription

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

type (
	Presence = presence
	Evictor  = evictor
)

func NewPresence(p uow.Provider, subscription string, every, forget time.Duration, consuming func() bool, note func(error)) *Presence {
	run := newPresence(p, "shipping", subscription, consuming, note)
	run.every, run.forget = every, forget
	return run
}

func (p *presence) Start(ctx context.Context) (stop func()) { return p.start(ctx) }
func (p *presence) Beat(ctx context.Context) error          { return p.beat(ctx) }
func (p *presence) Careful() bool                           { return p.careful() }
func (p *presence) Run() string                             { return p.run }

func NewEvictor(p uow.Provider, subscription, run string, retention, every time.Duration, most int, log *slog.Logger, note func(error)) *Evictor {
	e := newEvictor(p, subscription, run, retention, 7*24*time.Hour, log, note)
	e.every, e.most = every, most
	return e
}

func (e *evictor) Start(ctx context.Context) (stop func()) { return e.start(ctx) }
func (e *evictor) Learn(ctx context.Context) error         { return e.learn(ctx) }
func (e *evictor) Turn(ctx context.Context) error          { return e.turn(ctx) }
func (e *evictor) Cutoff(ctx context.Context) (at time.Time, ok bool, err error) {
	return e.upSince(ctx, e.retention)
}

func (e *evictor) Step(ctx context.Context, cutoff time.Time, size int) (n int, err error) {
	return e.step(ctx, cutoff, size)
}
func (e *evictor) Beyond(id string, sent time.Time) bool { return e.beyond(id, sent) }
func (e *evictor) Passed() int64                         { return e.passed.Load() }

// Careful says whether r thinks that another run may have died of a message.
func (r *Runner) Careful() bool { return r.presence.careful() }

// Knows says whether r knows from when its inbox is.
func (r *Runner) Knows() bool { return r.evictor.horizon.Load() != nil }

// Promised notes a promise as a session does when all before it is settled; without
// times, that the source has sent something.
func (e *evictor) Promised(partition, source string, settled, asOf time.Time) {
	e.marks.note(partition, outbox.Promise{Source: source, Settled: settled, AsOf: asOf})
}
func (e *evictor) Report(ctx context.Context) error { return e.report(ctx) }

// Room makes room for so many marks.
func (e *evictor) Room(n int) { e.marks.room = n }

// Noted is how many marks wait to be written down.
func (e *evictor) Noted() int { return len(e.marks.seen) }

// Report writes down what senders have promised.
func (r *Runner) Report(ctx context.Context) error { return r.evictor.report(ctx) }

// Consuming says whether the time counts as uptime.
func (r *Runner) Consuming() bool { return r.consuming() }

// ConsumptionsQuery is what finds who is done with n messages.
func ConsumptionsQuery(n int) string { return consumptionsQuery(n) }

// Indexable is how the inbox stores a message's id.
func Indexable(id string) string { return indexable(id) }
