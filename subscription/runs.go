package subscription

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/writer"
	"github.com/waybill-go/waybill/uow"
)

const (
	beatEvery = 3 * time.Second
	// beatTime is how long the database may take for a beat, and for the last one.
	beatTime = 3 * time.Second
	// forgetAfter is how long a run that gives no sign is thought to have died of a
	// message, while others consume. By then all that it had in hand has come again.
	forgetAfter = 10 * time.Minute
	// foreignFor is for how long a run of another context counts that gives no sign: it has
	// missed three beats.
	foreignFor = 10 * time.Second
)

// presence keeps a row in subscription_runs while a runner runs. A row that nobody
// refreshes is one of a process that died, maybe of a message: while there is one, the
// first attempt at each message is counted before it is made.
//
// Each beat also notes that the subscription is up, for the age of what is in the
// inbox.
//
// Whether others are alive is judged by this process's monotonic clock, from look
// to look: which time it is on another host, or on the database's, is no matter.
type presence struct {
	provider     uow.Provider
	context      string
	subscription string
	run          string      // "<context>/<uuid>"; that of an earlier build is a UUID
	consuming    func() bool // It has joined its group; broker and database answer.
	note         func(error)
	every        time.Duration
	forget       time.Duration

	calm   atomic.Bool
	others map[string]sighting // Nil before the first look.
}

// sighting is what this run knows of another one.
type sighting struct {
	seenAt  time.Time // As its row says.
	changed time.Time // When that was last found to be another; zero: never.
	silent  time.Time // Since when it gives no sign, while this run consumes without a break.
}

func newPresence(provider uow.Provider, whose, subscription string, consuming func() bool, note func(error)) *presence {
	return &presence{
		provider: provider, context: whose, subscription: subscription, run: whose + "/" + uuid.NewString(),
		consuming: consuming, note: note, every: beatEvery, forget: forgetAfter,
	}
}

// careful says whether another process may have died of a message. It is also true
// until this run has a row, which would tell of its own death.
func (p *presence) careful() bool { return !p.calm.Load() }

// unshared refuses to begin where another context has a subscription of the name, in another
// program: broker and inbox know it by its name, so each would take a part of the messages from
// the other, and neither would miss them.
func (p *presence) unshared(ctx context.Context) error {
	found, err := sightings(ctx, p.provider.Reader(), "SELECT run, seen_at FROM subscription_runs WHERE subscription = ? AND seen_at > ?", p.subscription, p.in(-foreignFor))
	if err != nil {
		return fmt.Errorf("look for runs of other contexts: %w", err)
	}
	for run := range found {
		if whose, _, said := strings.Cut(run, "/"); said && whose != p.context {
			return fmt.Errorf("a program of context %s has a subscription of this name in the same database, and one of context %s is starting, so each would take the other's messages: "+
				"give one of them another Name; if the former was killed, and is not to run any more, try again in %v", whose, p.context, foreignFor)
		}
	}
	return nil
}

// start beats once, if ctx lasts so long, and goes on with it. stop ends that and
// removes the row, within seconds.
func (p *presence) start(ctx context.Context) (stop func()) {
	if err := p.beat(ctx); ctx.Err() == nil {
		p.note(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, p.every) {
			if err := p.beat(ctx); ctx.Err() == nil {
				p.note(err)
			}
		}
		if err := p.leave(context.WithoutCancel(ctx)); err != nil {
			p.note(err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// leave says that nobody died. Without it, the next run is careful for a while.
func (p *presence) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTime)
	defer cancel()
	_, err := p.provider.DB().ExecContext(writer.Urgent(ctx), "DELETE FROM subscription_runs WHERE subscription = ? AND run = ?", p.subscription, p.run)
	if err != nil {
		return fmt.Errorf("subscription: remove the row of run %s: %w", p.run, err)
	}
	return nil
}

// beat refreshes the row, extends the uptime, and looks for others. If the database
// doesn't answer, all stays as it was.
func (p *presence) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(writer.Urgent(ctx), beatTime)
	defer cancel()
	consuming := p.consuming()
	found, err := p.exchange(ctx, consuming)
	if err != nil {
		return fmt.Errorf("subscription: refresh the row of run %s: %w", p.run, err)
	}
	for _, run := range p.judge(found, consuming) {
		if err := p.remove(ctx, run); err != nil {
			return fmt.Errorf("subscription: remove the row of run %s, which has ended: %w", run, err)
		}
	}
	return nil
}

// exchange writes what is to be said and returns the other runs with the times at
// which they were seen. On PostgreSQL it is one statement, so that a process which
// is suspended in the middle holds no lock: the row of the uptime is shared.
func (p *presence) exchange(ctx context.Context, consuming bool) (map[string]time.Time, error) {
	db := p.provider.DB()
	statements := []schema.QueryWithArgs{p.refresh()}
	if consuming {
		statements = append(statements, p.extend(), p.begin())
	}
	const others = "SELECT run, seen_at FROM subscription_runs WHERE subscription = ? AND run <> ?"
	if db.Dialect().Name() != dialect.SQLite {
		names := []string{"refreshed", "extended", "begun"}
		query, args := "WITH ", []any{}
		for i, s := range statements {
			query += names[i] + " AS (?), "
			args = append(args, s)
		}
		return sightings(ctx, db, strings.TrimSuffix(query, ", ")+" "+others, append(args, p.subscription, p.run)...)
	}
	var found map[string]time.Time
	err := dbtx.Run(ctx, db, func(tx bun.Tx) (err error) {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, "?", s); err != nil {
				return err
			}
		}
		found, err = sightings(ctx, tx, others, p.subscription, p.run)
		return err
	})
	return found, err
}

func sightings(ctx context.Context, db bun.IDB, query string, args ...any) (map[string]time.Time, error) {
	found := map[string]time.Time{}
	err := dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var run string
		var at dbtime.Time
		err := scan(&run, &at)
		found[run] = at.Time
		return err
	}, args...)
	return found, err
}

// refresh also brings the row back that others have removed while this process
// was suspended.
func (p *presence) refresh() schema.QueryWithArgs {
	return bun.SafeQuery("INSERT INTO subscription_runs (subscription, run) VALUES (?, ?) ON CONFLICT (subscription, run) DO UPDATE SET seen_at = ?",
		p.subscription, p.run, p.in(0))
}

// newest is the interval of the uptime that goes on. One that lies in the future,
// from when the database's clock was wrong, is left out.
const newest = " FROM subscription_uptime WHERE subscription = ? AND up_from <= ? ORDER BY up_from DESC LIMIT 1"

// extend makes the newest interval longer if it is one that goes on, and if no other
// run has just done so.
func (p *presence) extend() schema.QueryWithArgs {
	return bun.SafeQuery("UPDATE subscription_uptime SET up_until = ? WHERE subscription = ? AND up_from = (SELECT up_from"+newest+") AND up_until >= ? AND up_until < ?",
		p.in(0), p.subscription, p.subscription, p.in(0), p.in(-3*p.every), p.in(-p.every/2))
}

// begin begins another interval if the newest is over: in between, nobody consumed.
func (p *presence) begin() schema.QueryWithArgs {
	return bun.SafeQuery("INSERT INTO subscription_uptime (subscription, up_from, up_until) SELECT ?, ?, ?"+
		" WHERE NOT COALESCE((SELECT up_until >= ?"+newest+"), FALSE) ON CONFLICT DO NOTHING",
		p.subscription, p.in(0), p.in(0), p.in(-3*p.every), p.subscription, p.in(0))
}

// judge decides whether to be careful, and returns the runs that can be forgotten.
// All that are there at the first look are doubtful, until they are refreshed;
// those that come later are alive.
func (p *presence) judge(found map[string]time.Time, consuming bool) (gone []string) {
	now, first := time.Now(), p.others == nil
	others, calm := make(map[string]sighting, len(found)), true
	for run, at := range found {
		s, known := p.others[run]
		if known && !at.Equal(s.seenAt) || !known && !first {
			s.changed = now
		}
		s.seenAt = at
		alive := now.Sub(s.changed) <= 5*p.every/2
		switch {
		case alive || !consuming:
			s.silent = time.Time{}
		case s.silent.IsZero():
			s.silent = now
		case now.Sub(s.silent) >= p.forget:
			gone = append(gone, run)
		}
		calm = calm && alive
		others[run] = s
	}
	p.others = others
	p.calm.Store(calm)
	return gone
}

// remove removes the row of another run, if that is still as old as it seemed.
func (p *presence) remove(ctx context.Context, run string) error {
	_, err := p.provider.DB().ExecContext(ctx, "DELETE FROM subscription_runs WHERE subscription = ? AND run = ? AND seen_at <= ?", p.subscription, run, p.in(-p.forget))
	return err
}

// in is the database's time, so much later.
func (p *presence) in(after time.Duration) bun.Safe {
	return bun.Safe(dbtime.In(p.provider.DB().Dialect(), after))
}
