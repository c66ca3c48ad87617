package subscription_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/subscription"
)

// promises is a subscription that was up for long, with an entry of so many days ago
// that it is old enough to go.
type promises struct {
	*world
	*subscription.Evictor
	begin time.Time
}

func newPromises(w *world, days int) *promises {
	w.up("shipping", 100*day, 0)
	w.fillInbox("shipping", "old", 1, time.Duration(days)*day)
	return &promises{w, w.evictor("a", retention), time.Now()}
}

// says is a promise that arrives: made some time after the day before the beginning,
// all that was stored some time before the beginning is settled.
func (p *promises) says(partition string, before, after time.Duration) {
	p.t.Helper()
	p.Promised(partition, "outbox:default", p.begin.Add(-before), p.begin.Add(after-day))
	require.NoError(p.t, p.Report(p.t.Context()))
}

func (p *promises) require(entries int, why string) {
	p.t.Helper()
	p.exec("UPDATE subscription_evictions SET due_at = ?", p.in(-time.Second))
	p.turn(p.Evictor)
	require.Equal(p.t, entries, p.inbox(), why)
}

// S0-20: a sender that was away comes back with a call that nobody answered. The
// entry stays until its promise passes the row, and a call of the former owner, which
// is on its way, has ended.
func TestMarks_S0_20_ZombieCallAfterATakeover(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		p.Promised("0", "outbox:default", time.Time{}, time.Time{})
		require.NoError(t, p.Report(t.Context()))
		p.require(1, "something came, and nothing is promised yet")
		p.says("0", 36*day, 0)
		p.require(1, "one promise alone")
		p.says("0", 36*day, 61*time.Minute)
		p.require(1, "the row is not settled")
		require.Len(t, w.logs.lines("old entries stay in the inbox"), 1)
		p.says("0", 0, 2*time.Hour+2*time.Minute)
		p.require(1, "it is settled, and a call may be on its way")
		p.says("0", 0, 3*time.Hour)
		p.require(1, "it may still")
		p.says("0", 0, 3*time.Hour+3*time.Minute)
		p.require(0, "every call has ended")
		require.Len(t, w.logs.lines("old entries leave the inbox"), 1)
	})
}

// S0-20: clocks may be apart by an hour.
func TestMarks_S0_20_ClocksApart(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		for after := range 3 {
			p.says("0", 35*day-59*time.Minute, time.Duration(2*after)*time.Hour)
		}
		p.require(1, "it may have been stored later than it was handled")
		for after := range 3 {
			p.says("0", 35*day-61*time.Minute, time.Duration(10+2*after)*time.Hour)
		}
		p.require(0, "not by so much")
	})
}

// S0-20: each partition of the topic speaks for itself. One to which nothing comes
// for as long as messages may come again, counted while the subscription is up,
// doesn't count; then age is all there is.
func TestMarks_S0_20_QuietPartition(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		p.says("1", 36*day, 0)
		for after := range 3 {
			p.says("0", 0, time.Duration(2*after)*time.Hour)
		}
		p.require(1, "a copy may be in the other partition, not read yet")
		w.exec("UPDATE inbox_marks SET seen_at = ? WHERE partition = '1'", w.in(-6*day))
		p.require(1, "it may come for a week")
		w.exec("UPDATE inbox_marks SET seen_at = ? WHERE partition = '1'", w.in(-8*day))
		w.exec("UPDATE subscription_uptime SET up_until = ?", w.in(-7*day))
		p.require(1, "for most of that nobody consumed")
		w.exec("UPDATE subscription_uptime SET up_until = ?", w.in(0))
		p.require(0, "for a week nothing came")
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks"))
	})
}

// S0-20: a sender that was restored from a backup has rows unsettled again, and says
// so at once.
func TestMarks_S0_20_RestoredSource(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		for after := range 3 {
			p.says("0", 10*day, time.Duration(2*after)*time.Hour)
		}
		p.says("0", 36*day, 4*time.Hour+time.Minute)
		p.require(1, "it goes back")
		p.says("0", 0, 5*time.Hour+time.Minute)
		p.says("0", 0, 6*time.Hour+2*time.Minute)
		p.require(0, "it has sent all again")
	})
}

// S0-20: another subscription's senders are not ours.
func TestMarks_S0_20_OfOneSubscription(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		w.exec("INSERT INTO inbox_marks (subscription, partition, source) VALUES ('billing', '0', 'outbox:default')")
		p.require(0, "age alone")
	})
}

// with gives a message the headers of a promise.
func with(m broker.Message, settled, asOf time.Time) broker.Message {
	m.Headers["waybill-source"] = "outbox:default"
	m.Headers["waybill-low"], m.Headers["waybill-at"] = strconv.FormatInt(settled.UnixMilli(), 10), strconv.FormatInt(asOf.UnixMilli(), 10)
	return m
}

// S0-20: a promise counts when all before it in its partition is settled; that holds
// for what the broker took back, too, and a second member has no promises of a broker
// that doesn't divide a topic.
func TestMarks_S0_20_CountWhenAllBeforeIsSettled(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		entered, free := make(chan struct{}, 3), make(chan struct{})
		s := w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error {
			if e.Note == "slow" {
				entered <- struct{}{}
				select {
				case <-free:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return effect(ctx, e)
		}))
		r, stop := w.start(s, w.broker)
		at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
		next := func() int {
			require.NoError(t, r.Report(t.Context()))
			return w.count("SELECT count(*) FROM inbox_marks WHERE next IS NOT NULL")
		}
		w.publish(placed("o-0", "slow"), placed("o-0", "behind it"), with(placed("o-1", ""), at, at), with(placed("o-2", ""), at.Add(time.Minute), at.Add(time.Minute)))
		<-entered
		w.until(func() bool { return w.allEffects() == 2 }, "others go on")
		require.Zero(t, next(), "the first is not settled")
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks"), "somebody has sent")

		w.broker.Revoke(topic, "shipping")
		<-entered
		w.publish(with(placed("o-3", ""), at.Add(2*time.Minute), at.Add(2*time.Minute)))
		w.until(func() bool { return w.allEffects() == 3 }, "others go on")
		require.Zero(t, next(), "the first is not settled, but has come again")
		close(free)
		w.until(w.acknowledged("shipping"), "all is settled")
		require.Equal(t, 1, next())
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks WHERE next = ? AND next_at = next AND settled IS NULL AND partition = '0' AND source = 'outbox:default'", dbtime.Value(w.provider.DB().Dialect(), at.Add(2*time.Minute))))
		stop()

		w.exec("DELETE FROM inbox_marks")
		c, err := w.broker.Consume(t.Context(), topic, "shipping")
		require.NoError(t, err)
		r, stop = w.start(w.stream(), w.broker)
		w.until(func() bool { return r.Status().Running }, "it is a member")
		require.NoError(t, c.Close(t.Context()))
		w.publish(with(placed("o-4", ""), at, at))
		w.until(w.acknowledged("shipping"), "it is settled")
		require.NoError(t, r.Report(t.Context()))
		require.Zero(t, w.count("SELECT count(*) FROM inbox_marks"))
		stop()
	})
}

// S0-20: what says nothing of its sender is kept by age alone.
func TestMarks_S0_20_WithoutHeaders(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		r, stop := w.start(w.stream(), w.broker)
		odd := placed("o-1", "")
		odd.Headers["waybill-low"] = "often"
		w.publish(placed("o-0", ""), odd)
		w.until(func() bool { return w.allEffects() == 2 }, "both are handled")
		require.NoError(t, r.Report(t.Context()))
		stop()
		require.Zero(t, w.count("SELECT count(*) FROM inbox_marks"))
		p.require(2, "the old one goes")
	})
}

// S4: headers of a stream that isn't trusted mark nothing, whatever they say.
func TestMarks_S4_ForgedByAStranger(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := w.stream()
		s.Inbound.Trust = subscription.Untrusted()
		r, stop := w.start(s, w.broker)
		at := time.Now().Add(-time.Minute)
		for i := range 100 {
			forged := with(placed("o-"+strconv.Itoa(i), ""), at, at)
			forged.Headers["waybill-source"] = "forged-" + strconv.Itoa(i)
			w.publish(forged)
		}
		w.until(func() bool { return w.allEffects() == 100 }, "they are handled as any others")
		require.NoError(t, r.Report(t.Context()))
		stop()
		require.Zero(t, w.count("SELECT count(*) FROM inbox_marks"))
	})
}

// S4: times that are none, or of a clock that is ahead, move no mark on; a sound
// promise beside them isn't lost, and goes on when the clock does.
func TestMarks_S4_WrongTimesLoseNoOther(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		// As a session would note them, past the check of the headers.
		p.Promised("0", "wrong-0", p.begin.AddDate(7000, 0, 0), p.begin.AddDate(7000, 0, 0))
		p.Promised("0", "wrong-1", p.begin, p.begin.AddDate(290_000, 0, 0))
		p.Promised("0", "wrong-2", p.begin, p.begin.Add(2*time.Hour))
		p.says("0", 36*day, 0)
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks WHERE source = 'outbox:default' AND next IS NOT NULL"), "the sound one")
		p.require(1, "it holds, and the wrong ones with it")
		require.Zero(t, w.count("SELECT count(*) FROM inbox_marks WHERE next_at > ?", w.in(time.Hour)))
	})
}

// S4: what an earlier build wrote down of such times, and no later promise would
// replace, is forgotten; the row stays, and keeps what its sender may send again.
func TestMarks_S4_ARowOfWrongTimes(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		times := []string{"9000-01-01T00:00:00.000Z"}
		if !w.isPostgres() { // which has refused the others
			times = append(times, "292278994-08-17T07:12:55.807Z", "20000-01-01T00:00:00.000Z")
		}
		for n, at := range times {
			w.exec("INSERT INTO inbox_marks (subscription, partition, source, settled, next, next_at) VALUES ('shipping', '0', ?, ?, ?, ?)", "wrong-"+strconv.Itoa(n), at, at, at)
		}
		p.require(1, "nothing is known of their senders")
		for n := range times {
			for after := range 3 {
				p.Promised("0", "wrong-"+strconv.Itoa(n), p.begin, p.begin.Add(time.Duration(after-4)*2*time.Hour))
				require.NoError(t, p.Report(t.Context()))
			}
		}
		p.require(0, "they have promised since")
	})
}

// S4: more sources than there is room for: rows are bounded, none that is known is
// lost, and of the others is known that they have sent something: entries stay until
// they are gone.
func TestMarks_S4_ManySources(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		for after := range 3 {
			p.says("0", 0, time.Duration(after-6)*2*time.Hour)
		}
		const room, sources = 50, 20_000
		p.Room(room)
		for n := range sources {
			p.Promised("0", "forged-"+strconv.Itoa(n), p.begin, p.begin)
		}
		require.LessOrEqual(t, p.Noted(), room+1)
		require.NoError(t, p.Report(t.Context()))
		require.LessOrEqual(t, w.count("SELECT count(*) FROM inbox_marks"), room+1)
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks WHERE source = 'outbox:default' AND settled IS NOT NULL"), "the one that was there")
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks WHERE source = '' AND settled IS NULL"), "one for the others")
		require.Len(t, w.logs.lines("more senders have sent messages than the inbox can keep marks of"), 1)
		w.exec("DELETE FROM inbox_marks WHERE source LIKE 'forged-%'")
		p.require(1, "nobody knows what the others have settled")
		w.exec("UPDATE inbox_marks SET seen_at = ? WHERE source = ''", w.in(-8*day))
		p.require(0, "they have gone")
	})
}

// S4: a mark that can't be written is written later, and the others now.
func TestMarks_S4_EachByItself(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		p := newPromises(w, 35)
		if w.isPostgres() {
			w.exec("ALTER TABLE inbox_marks ADD CONSTRAINT unlucky CHECK (source <> 'unlucky')")
		} else {
			w.exec("CREATE TRIGGER unlucky BEFORE INSERT ON inbox_marks WHEN NEW.source = 'unlucky' BEGIN SELECT RAISE(ABORT, 'unlucky'); END")
		}
		for _, source := range []string{"a", "unlucky", "b", "c"} {
			p.Promised("0", source, p.begin, p.begin)
		}
		require.ErrorContains(t, p.Report(t.Context()), "unlucky")
		require.Equal(t, 3, w.count("SELECT count(*) FROM inbox_marks"))
		if w.isPostgres() {
			w.exec("ALTER TABLE inbox_marks DROP CONSTRAINT unlucky")
		} else {
			w.exec("DROP TRIGGER unlucky")
		}
		require.NoError(t, p.Report(t.Context()))
		require.Equal(t, 1, w.count("SELECT count(*) FROM inbox_marks WHERE source = 'unlucky' AND next IS NOT NULL"))
	})
}
