package waybilltest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/testclock"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	patience = 10 * time.Second
	// some is how many of what is left are named.
	some = 10
	// glance is between two looks.
	glance = 5 * time.Millisecond
)

// Settle waits until nothing is left to do: outboxes empty, no message unhandled, no
// timer due, no projection behind, twice in a row with nothing new between. After ten seconds it fails the
// test and says what is left. A message that was parked, or given up by an outbox, and a projection that is stuck,
// fails it at once, unless [Kit.ExpectParked] was called. One that waits for its process
// to begin is left to do, unless it was.
//
// It knows of what Start runs, and not of goroutines of the test's own.
func (k *Kit) Settle() {
	k.t.Helper()
	if err := k.settle(); err != nil {
		k.t.Fatal(err)
	}
}

// settle returns nil also when what runs was killed: there is nothing to wait for.
func (k *Kit) settle() error {
	k.mu.Lock()
	p, parkedToo := k.now, k.expectParked
	k.mu.Unlock()
	if p == nil {
		return fmt.Errorf("waybilltest: nothing runs that could settle: call Start first")
	}
	ctx := k.t.Context()
	var before sight
	glances := time.NewTicker(glance)
	defer glances.Stop()
	for end := time.Now().Add(k.patience); ; <-glances.C {
		s := p.look(ctx)
		if !parkedToo {
			s.left = append(s.left, s.early...)
		}
		s.quiet = len(s.left) == 0
		switch {
		case p.killed():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("waybilltest: the test has ended before the service settled: %w", ctx.Err())
		case len(s.parked) > 0 && !parkedToo:
			return fmt.Errorf("waybilltest: parked, so that the service can't settle (call ExpectParked if the test is about that):%s", list(s.parked))
		case s.quiet && before.quiet && s.ended == before.began && s.events == before.events:
			return nil
		case time.Now().After(end) && len(s.left) > 0:
			return fmt.Errorf("waybilltest: the service hasn't settled within %v; left are:%s", k.patience, list(s.left))
		case time.Now().After(end):
			return fmt.Errorf("waybilltest: the service hasn't settled within %v: it goes on and on, so look for messages or timers that make one another", k.patience)
		}
		before = s
	}
}

func list(what []string) string {
	more := ""
	if len(what) > some {
		more = fmt.Sprintf("\n\tand %d more", len(what)-some)
		what = what[:some]
	}
	return "\n\t" + strings.Join(what, "\n\t") + more
}

// Advance moves the clock that timers, deadlines and [domain.Now] go by. It settles
// before, so that what is under way belongs to the time before. On its way it stops at
// the time of each timer, whose handler finds the time which it was set for, and settles
// there, and at the end. Between calls the clock stands, whatever the machine's does: two
// timers a millisecond apart are handled one after the other. Before Start it only moves
// the clock.
//
// Leases, retention and [subscription.RetryAfter] go by real time. Messages whose handler
// fails are tried again within milliseconds, whatever the Backoff of their stream is.
func (k *Kit) Advance(d time.Duration) {
	k.t.Helper()
	if d < 0 {
		k.fatal("Advance(%v): time doesn't go back", d)
	}
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	goal := k.clock.Now().Add(d)
	if p == nil {
		k.clock.MoveTo(goal)
		return
	}
	for k.Settle(); !p.killed(); k.Settle() {
		due, found, err := p.nextTimer(k.t.Context())
		if err != nil && !p.killed() {
			k.fatal("Advance: %v", err)
		}
		if !found || due.After(goal) {
			break
		}
		k.clock.MoveTo(due)
	}
	k.clock.MoveTo(goal)
	k.Settle()
}

// nextTimer is when the earliest timer is due.
func (p *process) nextTimer(ctx context.Context) (next time.Time, found bool, err error) {
	for _, provider := range p.providers() {
		earliest, err := timersOf(provider).Next(ctx)
		if err != nil {
			return next, false, err
		}
		if len(earliest) > 0 && (!found || earliest[0].At.Before(next)) {
			next, found = earliest[0].At, true
		}
	}
	return next, found, nil
}

func timersOf(p uow.Provider) *timerdb.Store {
	return timerdb.New(p.DB(), p.Reader()).By(testclock.Of(p))
}

// providers are those with an outbox, and so with timers.
func (p *process) providers() []uow.Provider {
	return providersOf(slices.DeleteFunc(slices.Clone(p.units), (*uow.Manager).OutboxDisabled))
}

func providersOf(units []*uow.Manager) (all []uow.Provider) {
	for _, m := range units {
		for _, provider := range m.Providers() {
			if !slices.Contains(all, provider) {
				all = append(all, provider)
			}
		}
	}
	return all
}

// sight is what a look has found.
type sight struct {
	left   []string // that something has yet to become of
	parked []string // that waits for somebody
	early  []string // that waits for its process to begin
	quiet  bool     // nothing is left

	began, ended int // calls of the brokers' Publish, ever, before it and behind it
	events       int // that projections have handled, ever
}

// look goes the way that a message goes: what has left a place is found at the next one, or
// was published meanwhile. One look alone may miss what was being published when it began: it
// wasn't at the broker yet, and has left the outbox when that is looked at. So there have to
// be two that find nothing, with no publication between the first one's begin and the second
// one's end.
func (p *process) look(ctx context.Context) (s sight) {
	s.began = p.calls()
	for name, state := range p.engine.Subscriptions() {
		lag, err := p.engine.Lag(ctx, name)
		s.note(err)
		if lag.Messages > 0 {
			what := fmt.Sprintf("subscription %q: %d messages are not handled yet", name, lag.Messages)
			if running := state.InFlight - state.Waiting; running > 0 {
				what += fmt.Sprintf(", and %d of them are with a handler that hasn't returned, or behind such a one: look for what it waits for", running)
			}
			if state.LastError != "" {
				what += "; the last error: " + state.LastError
			}
			if out := p.handed.of(name).oldest(); len(out) > 0 {
				what += "; it has " + strings.Join(out, ", ")
			}
			s.left = append(s.left, what)
		}
	}
	all, sending := providersOf(p.units), p.providers()
	s.each(ctx, all, s.letters)
	s.each(ctx, sending, s.timers)
	s.each(ctx, sending, s.rows)
	s.each(ctx, all, s.projections)
	s.ended = p.calls()
	return s
}

func (s *sight) each(ctx context.Context, providers []uow.Provider, look func(context.Context, uow.Provider) error) {
	for _, p := range providers {
		s.note(look(ctx, p))
	}
}

func (p *process) calls() (n int) {
	for name := range p.conns {
		n += len(p.k.Broker(name).Calls())
	}
	return n
}

func (s *sight) note(err error) {
	if err != nil {
		s.left = append(s.left, err.Error())
	}
}

// rows are those of the outbox.
func (s *sight) rows(ctx context.Context, p uow.Provider) error {
	found, err := outboxdb.New(p.DB(), p.Reader()).Find(ctx, outbox.Filter{
		Statuses: []outbox.Status{outbox.Pending, outbox.Processing, outbox.Failed, outbox.Abandoned}, Limit: 1000,
	})
	for _, e := range found {
		what := fmt.Sprintf("outbox row %d, %s of %s for broker %q: %s", e.Seq, e.MessageType, e.Stream, e.TargetBroker, e.Status)
		if e.LastError != "" {
			what += fmt.Sprintf(" after %d attempts; the last error: %s", e.Attempts, e.LastError)
		}
		if e.Status == outbox.Abandoned {
			s.parked = append(s.parked, what)
		} else {
			s.left = append(s.left, what)
		}
	}
	return err
}

func (s *sight) timers(ctx context.Context, p uow.Provider) error {
	store := timersOf(p)
	next, err := store.Next(ctx)
	if err != nil || len(next) == 0 || next[0].In > 0 {
		return err
	}
	now := next[0].At.Add(-next[0].In)
	page, err := store.Find(ctx, outbox.TimerFilter{Status: outbox.TimerWaiting, Until: now.Add(time.Millisecond), Limit: 1000})
	for _, t := range page.Timers {
		s.left = append(s.left, fmt.Sprintf("timer %q of %s, %s: due since %s", t.Name, t.Owner, t.Type, t.AvailableAt.Format(time.RFC3339Nano)))
	}
	return err
}

// projections are at the head of the history when they have nothing left to do. One that
// is stuck at an event waits for somebody.
func (s *sight) projections(ctx context.Context, p uow.Provider) error {
	all, err := projection.List(ctx, p)
	for _, b := range all {
		if b.Status != projection.Live && !b.Fed {
			continue // Its program doesn't run.
		}
		s.events += int(b.Events)
		what := fmt.Sprintf("projection %q, build %d: it has come to position %d of %d", b.Name, b.Build, b.Position, b.Head)
		switch {
		case b.Failure != nil:
			s.parked = append(s.parked, fmt.Sprintf("%s, and has stopped at %s: %s", what, b.Failure.Event, b.Failure.Error))
		case b.Behind:
			s.left = append(s.left, what)
		}
	}
	return err
}

// letters are dead letters. Those that are parked, and what waits behind them, wait for
// somebody; those that came before the process they are for began, for that; the others
// continue by themselves.
func (s *sight) letters(ctx context.Context, p uow.Provider) error {
	all, err := lettersOf(ctx, p)
	for _, l := range all {
		what := fmt.Sprintf("dead letter of subscription %q, %s %s of key %q: %s (%s) after %d attempts: %s",
			l.Subscription, l.Type, l.MessageID, l.Key, l.Status, l.Reason, l.Attempts, l.Error)
		switch l.Status {
		case subscription.DeadLetterParked, subscription.DeadLetterHeld:
			s.parked = append(s.parked, what)
		case subscription.DeadLetterEarly:
			s.early = append(s.early, what)
		default:
			s.left = append(s.left, what)
		}
	}
	return err
}
