package relay_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

func partitions(p *process) int { return p.Status()[target].Partitions }

// ready waits until processes have their shares.
func (w *world) ready(shares map[*process]int) {
	w.Helper()
	w.until(time.Minute, "shared", func() bool {
		for p, n := range shares {
			if partitions(p) != n {
				return false
			}
		}
		return true
	})
}

func TestShare_ASecondProcessGetsHalf(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.start()
		w.ready(map[*process]int{a: 8})
		b := w.start()
		w.ready(map[*process]int{a: 4, b: 4})
		require.NoError(t, a.Stop(w.Context()))
		w.ready(map[*process]int{b: 8})
	})
}

// vanish ends a process as a kill does: nothing of it reaches the database any more, and
// nothing that it sends the broker.
func (w *world) vanish(p *process) {
	p.store.SetOutage(true)
	p.broker.down(true)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Stop(ctx) // where nothing is out it is quicker than its context
}

// A process that vanishes with rows in hand: these go to another after its lease, in order.
func TestCrash_AnotherGoesOnInOrder(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.start()
		w.ready(map[*process]int{a: 8})
		a.broker.through(func(ctx context.Context, messages []broker.Message) error { // stored, and nobody hears of it
			_ = w.broker.Publish(ctx, messages)
			<-ctx.Done()
			return ctx.Err()
		})
		ids := w.commit(a, 5, 10)
		w.until(time.Second, "in flight", func() bool { return len(w.broker.Messages(topic)) > 0 })
		w.vanish(a)
		begin := time.Now()
		b := w.start()
		w.delivered(time.Minute)
		require.Less(t, time.Since(begin), 36*time.Second)
		w.inOrder(ids)
		require.Positive(t, b.Status()[target].TakenOver+b.Status()[target].Published)
	})
}

// N1: what a process that has ended on this host had goes on at once.
func TestReap_N1_OfADeadProcessAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		name := liveness.Here().Name()
		dead := regexp.MustCompile(`\.\d+\.`).ReplaceAllString(name, ".1.")
		if liveness.Here().State(dead) != liveness.Dead {
			t.Logf("of this system nobody can tell: %s, %d", dead, os.Getpid())
			return
		}
		ids, _, err := w.store.Lanes(w.Context(), []string{target})
		require.NoError(t, err)
		b := w.start()
		w.ready(map[*process]int{b: 8})
		require.NoError(t, b.Stop(w.Context()))

		members, err := w.store.Join(w.Context(), dead, []relay.Joining{{Lane: ids[0], Target: target}}, 30*time.Second)
		require.NoError(t, err)
		parts, err := w.store.Take(w.Context(), members[0], ids[0], 8)
		require.NoError(t, err)
		require.Len(t, parts, 8)
		w.insert(nil, "a")
		row, _, _ := w.store.Queued(1)
		_, err = w.store.Claim(w.Context(), relay.ClaimRequest{Member: members[0], Lane: ids[0], N: 1, Rows: []relay.RowRef{{Part: row.Part, Seq: 1, Key: row.Key}}})
		require.NoError(t, err)

		begin := time.Now()
		c := w.start()
		w.delivered(time.Minute)
		require.Less(t, time.Since(begin), 5*time.Second)
		require.Equal(t, int64(1), c.Status()[target].TakenOver)
		require.Equal(t, 1, w.logs.count("members whose processes have ended on this host left their partitions at once"))
		require.Equal(t, 1, w.logs.count("rows were taken over"))
	})
}

// unanswered is what may have become of a step that isn't answered.
var unanswered = map[string]relaytest.Fault{"it never runs": relaytest.Refused, "it ran": relaytest.Unanswered, "it runs later": relaytest.Late(time.Second)}

// A claim that isn't answered is forgotten; whether it ran, runs later or never.
func TestClaim_Unanswered(t *testing.T) {
	for name, fault := range unanswered {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start()
				p.store.Fault(relaytest.Claim, fault, fault)
				ids := w.commit(p, 5, 5)
				w.until(time.Minute, "delivered", func() bool { return len(w.store.Undelivered()) == 0 })
				w.inOrder(ids)
				require.Len(w, w.broker.Messages(topic), 25)
				require.NoError(t, p.Stop(w.Context()))
				time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
				require.Zero(t, w.store.Tokens(), "nothing is left of it")
			})
		})
	}
}

// A settle that isn't answered is repeated; if it ran, that is no alarm.
func TestSettle_Unanswered(t *testing.T) {
	for name, fault := range map[string]relaytest.Fault{
		"never": relaytest.Refused, "it ran": relaytest.Unanswered, "it runs later": relaytest.Late(5 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start()
				p.store.Fault(relaytest.Settle, fault, fault)
				ids := w.commit(p, 5, 5)
				w.delivered(time.Minute)
				w.inOrder(ids)
				require.Len(w, w.broker.Messages(topic), 25, "nothing twice")
				w.until(time.Second, "counted", func() bool { return p.Status()[target].Published == 25 })
				require.Zero(t, p.Status()[target].Stale)
			})
		})
	}
}

// O18: a settle that can never be written is given up, and the rows go again.
func TestSettle_O18_ThatCanNeverBeWrittenIsGivenUp(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		p.store.Fault(relaytest.Settle, relaytest.Fault{Fail: true, Err: &pgconn.PgError{Code: "22021", Message: "invalid byte sequence"}})
		w.insert(p, "a")
		w.delivered(time.Minute)
		require.Len(t, w.ids("a"), 2)
		require.Equal(t, 1, w.logs.count("can't be recorded; the lane rejoins"))
		require.Len(t, w.store.Members(), 1, "it has joined anew")
	})
}

// A take that isn't answered is found by the next renewal.
func TestTake_Unanswered(t *testing.T) {
	for name, fault := range map[string]relaytest.Fault{"never": relaytest.Refused, "it ran": relaytest.Unanswered, "it runs later": relaytest.Late(time.Second)} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				p := w.start(func(p *process, _ *relay.Config) { p.store.Fault(relaytest.Take, fault) })
				w.insert(nil, "a", "b", "c")
				w.delivered(15 * time.Second)
				require.Equal(t, 8, partitions(p))
			})
		})
	}
}

// A release that isn't answered may still run: the lane goes on as another member
// [RELEASEDOUBT].
func TestRelease_UnansweredEndsTheMembership(t *testing.T) {
	for name, fault := range map[string]relaytest.Fault{"never": relaytest.Refused, "it ran": relaytest.Unanswered, "it runs later": relaytest.Late(8 * time.Second)} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a := w.start()
				w.ready(map[*process]int{a: 8})
				a.store.Fault(relaytest.Release, fault)
				joins := a.store.Calls(relaytest.Join)
				b := w.start()
				w.ready(map[*process]int{a: 4, b: 4})
				require.Greater(t, a.store.Calls(relaytest.Join), joins)
				ids := w.commit(nil, 5, 10)
				w.delivered(time.Minute)
				w.inOrder(ids)
				owned := w.store.Owned(target)
				sum := 0
				for _, n := range owned {
					sum += n
				}
				require.Equal(t, 8, sum)
			})
		})
	}
}

// A process that stands still for longer than its lease: another goes on, and it joins
// anew when it is back.
// Conformance: F-13.
func TestLease_LostInTheMiddleOfACall(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.start()
		w.ready(map[*process]int{a: 8})
		going := make(chan struct{})
		a.broker.through(func(ctx context.Context, messages []broker.Message) error {
			<-going
			return w.broker.Publish(context.WithoutCancel(ctx), messages)
		})
		ids := w.commit(a, 5, 4)
		w.until(time.Second, "in flight", func() bool { return a.Status()[target].InFlight > 0 })
		a.store.SetOutage(true)
		b := w.start()
		w.delivered(time.Minute)
		w.ready(map[*process]int{b: 8})
		a.store.SetOutage(false)
		close(going)
		a.broker.down(false)
		w.ready(map[*process]int{a: 4, b: 4})
		w.inOrder(ids)
		ids = w.commit(nil, 5, 4)
		w.delivered(time.Minute)
		require.Len(t, ids, 4)
	})
}

// T2: before a call the member looks at its lease: what it has claimed for too long goes back.
func TestLease_ItsEndIsCheckedBeforeACall(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		p.store.Always(relaytest.Renew, relaytest.Refused)
		time.Sleep(9 * time.Second) //nolint:forbidigo // in a bubble: the last renewal was at most 10 s before
		p.store.Fault(relaytest.Claim, relaytest.Slow(14900*time.Millisecond))
		time.Sleep(9 * time.Second) //nolint:forbidigo // in a bubble
		w.insert(p, "a")
		time.Sleep(20 * time.Second) //nolint:forbidigo // in a bubble: the claim was answered after its lease
		require.Empty(t, w.broker.Messages(topic))
		p.store.Always(relaytest.Renew, relaytest.Fault{})
		w.delivered(time.Minute)
		require.Len(t, w.ids("a"), 1)
	})
}

// O4: a process that can't reach its broker gives its partitions away.
func TestHealth_O4_WhoCannotReachTheBrokerGivesItsPartitionsAway(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.start(), w.start()
		w.ready(map[*process]int{a: 4, b: 4})
		a.broker.down(true)
		ids := w.commit(nil, 5, 20)
		w.delivered(30 * time.Second)
		w.inOrder(ids)
		w.ready(map[*process]int{a: 0, b: 8})
		a.broker.down(false)
		w.ready(map[*process]int{a: 1})
		w.until(10*time.Minute, "tried again", func() bool {
			w.commit(nil, 1, 20)
			return partitions(a) == 4 && partitions(b) == 4
		})
		w.delivered(time.Minute)
	})
}

// O4: so does one whose calls hang; and it goes on when they don't any more.
func TestHealth_O4_WhoseCallsHangGivesItsPartitionsAway(t *testing.T) {
	inWorld(t, func(w *world) {
		hanging := make(chan struct{})
		a, b := w.start(), w.start()
		a.broker.through(func(context.Context, []broker.Message) error {
			<-hanging
			return broker.Classify(broker.Unknown, errors.New("too late"))
		})
		w.ready(map[*process]int{a: 4, b: 4})
		ids := w.commit(nil, 5, 20)
		w.delivered(2 * time.Minute)
		w.inOrder(ids)
		w.ready(map[*process]int{b: 8})
		require.Positive(t, w.logs.count("a call to the broker does not return"))
		close(hanging)
	})
}

// O4: if the calls of all hang, all keep their shares and go on trying, one row at a time,
// and say so: nothing stands still in silence. It goes on when calls return again.
func TestHealth_O4_IfAllCallsHangItIsSaid(t *testing.T) {
	inWorld(t, func(w *world) {
		hanging := make(chan struct{})
		var calls atomic.Int64
		hang := func(context.Context, []broker.Message) error {
			calls.Add(1)
			<-hanging
			return broker.Classify(broker.Unknown, errors.New("too late"))
		}
		a, b := w.start(), w.start()
		w.ready(map[*process]int{a: 4, b: 4})
		a.broker.through(hang)
		b.broker.through(hang)
		ids := w.commit(nil, 5, 20)
		time.Sleep(3 * time.Minute) //nolint:forbidigo // in a bubble
		before := calls.Load()
		time.Sleep(10 * time.Minute) //nolint:forbidigo // in a bubble
		require.LessOrEqual(t, calls.Load()-before, int64(2*10*60/15), "each is waited for before the next")
		require.Greater(t, calls.Load(), before, "but it is tried")
		for _, p := range []*process{a, b} {
			s := p.Status()[target]
			require.Equal(t, 4, s.Partitions)
			require.Equal(t, "probing", s.Doing)
			require.False(t, s.Healthy)
			require.Contains(t, s.Trouble, "did not return")
			require.Contains(t, s.LastError, "did not return")
		}
		for name, trouble := range w.store.Members() {
			require.Contains(t, trouble, "did not return", name)
		}
		require.Positive(t, w.logs.count("a call to the broker does not return"))
		require.Equal(t, 2, w.logs.count("the broker does not answer; rows wait until it does"))
		close(hanging)
		a.broker.down(false)
		b.broker.down(false)
		w.delivered(2 * time.Minute)
		w.inOrder(ids)
		w.until(time.Minute, "well again", func() bool { return a.Status()[target].Healthy && b.Status()[target].Healthy })
	})
}

// If nobody reaches the broker, all keep their shares, and go on when it is back.
func TestHealth_AnOutageForAllMovesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.start(), w.start()
		w.ready(map[*process]int{a: 4, b: 4})
		a.broker.down(true)
		b.broker.down(true)
		ids := w.commit(nil, 5, 20)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // in a bubble
		require.Equal(t, 4, partitions(a))
		require.Equal(t, 4, partitions(b))
		require.Equal(t, "probing", a.Status()[target].Doing)
		for name, trouble := range w.store.Members() {
			require.Contains(t, trouble, "down", name)
		}
		for seq := range int64(100) {
			_, attempts, _ := w.store.Queued(seq + 1)
			require.Zero(t, attempts)
		}
		a.broker.down(false)
		b.broker.down(false)
		w.delivered(15 * time.Second) // 8 s, a quarter more, and some calls
		w.inOrder(ids)
		require.Equal(t, 2, w.logs.count("the broker does not answer; rows wait until it does"))
		require.Equal(t, 2, w.logs.count("the broker answers again"))
	})
}

// The database errs or is slow while rows are written: once it answers, there is headway
// within a lease, without anybody's help.
func TestOverload_RecoversByItself(t *testing.T) {
	inWorld(t, func(w *world) {
		p := w.start()
		w.ready(map[*process]int{p: 8})
		for _, step := range []relaytest.Step{relaytest.Claim, relaytest.Settle, relaytest.Look, relaytest.Poll, relaytest.Take} {
			p.store.Always(step, relaytest.Slow(14*time.Second))
		}
		p.store.Always(relaytest.Renew, relaytest.Slow(5*time.Second))
		var all []string
		for i := range 60 {
			w.insert(p, "key-"+strconv.Itoa(i%7))
			all = append(all, strconv.Itoa(i))
			time.Sleep(2 * time.Second) //nolint:forbidigo // in a bubble
		}
		require.Equal(t, 8, partitions(p), "renewals wait for nothing")
		require.Zero(t, w.logs.count("leases had run out"))
		p.store.SetOutage(true)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // in a bubble
		p.store.SetOutage(false)
		for _, step := range []relaytest.Step{relaytest.Claim, relaytest.Settle, relaytest.Look, relaytest.Poll, relaytest.Take, relaytest.Renew} {
			p.store.Always(step, relaytest.Fault{})
		}
		w.delivered(30 * time.Second)
		require.Len(t, all, 60)
	})
}
