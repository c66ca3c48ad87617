package timerdb_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
)

// table is timers in memory. Its clock is the test's.
type table struct {
	mu sync.Mutex

	due         []time.Time
	sent        int
	sentAt      []time.Time // of each batch
	looks       int
	unpublished int // is 50,000 after a count, if published
	published   bool
	counts      int
	slow        time.Duration // a count
	busy, left  bool
	tries       int
	bad         error // of a promotion
	err         error // of a look
	crash       bool
}

func (f *table) Next(context.Context) ([]timerdb.Earliest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if f.crash {
		panic("boom")
	}
	if f.err != nil || len(f.due) == 0 {
		return nil, f.err
	}
	return []timerdb.Earliest{{Target: "default", At: f.due[0], In: time.Until(f.due[0])}}, nil
}

func (f *table) Unpublished(context.Context, string, int) (int, error) {
	time.Sleep(f.slow) //nolint:forbidigo // in a bubble
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts++
	n := f.unpublished
	if f.published {
		f.unpublished = 50_000
	}
	return n, nil
}

func (f *table) Promote(_ context.Context, _ string, limit int) (p timerdb.Promoted, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries++
	if f.bad != nil {
		return p, f.bad
	}
	if f.busy {
		return timerdb.Promoted{Busy: true}, nil
	}
	if f.left {
		return timerdb.Promoted{Left: 1}, nil
	}
	for len(f.due) > 0 && p.Sent < limit && !time.Now().Before(f.due[0]) {
		f.due = f.due[1:]
		p.Sent++
	}
	f.sent, f.sentAt = f.sent+p.Sent, append(f.sentAt, time.Now())
	p.Pokes = []outbox.Poke{{Target: "default", Partition: 3}}
	return p, nil
}

// targets are the timers of several.
type targets map[string]*table

func (all targets) Next(ctx context.Context) (earliest []timerdb.Earliest, err error) {
	for name, f := range all {
		next, err := f.Next(ctx)
		if err != nil {
			return nil, err
		}
		for _, e := range next {
			e.Target = name
			earliest = append(earliest, e)
		}
	}
	return earliest, nil
}

func (all targets) Unpublished(ctx context.Context, target string, limit int) (int, error) {
	return all[target].Unpublished(ctx, target, limit)
}

func (all targets) Promote(ctx context.Context, target string, limit int) (timerdb.Promoted, error) {
	return all[target].Promote(ctx, target, limit)
}

// promoting runs a promoter that looks every second, and checks what becomes of it. The
// bubble's goroutines are blocked whenever check looks at the table.
func promoting(t *testing.T, f timerdb.Steps, check func(t *testing.T, p *timerdb.Promoter, pokes *[]outbox.Poke, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var pokes []outbox.Poke
		p := timerdb.NewPromoter(f, time.Second, func(all []outbox.Poke) { pokes = append(pokes, all...) }, nil, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			p.Run(ctx)
			close(ended)
		}()
		synctest.Wait()
		check(t, p, &pokes, &log)
		cancel()
		<-ended
	})
}

// becomes has these timers wait instead of what did.
func (f *table) becomes(due ...time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due = due
}

// sendsInTime sets a timer, the only one, which is sent when it is due.
func (f *table) sendsInTime(t *testing.T, p *timerdb.Promoter) {
	t.Helper()
	at := time.Now().Add(300 * time.Millisecond)
	f.becomes(at)
	p.Set(at)
	f.pass(302 * time.Millisecond)
	require.Equal(t, 1, f.sent)
}

// pass lets time go by, behind what the test did to the table.
func (f *table) pass(d time.Duration) {
	f.mu.Lock()
	f.mu.Unlock() //nolint:staticcheck // it is passed on
	<-time.After(d)
	synctest.Wait()
}

func TestPromoter_SendsATimerWhenItIsDueAndWakesItsLane(t *testing.T) {
	f := &table{}
	promoting(t, f, func(t *testing.T, p *timerdb.Promoter, pokes *[]outbox.Poke, _ *bytes.Buffer) {
		f.due = []time.Time{time.Now().Add(300 * time.Millisecond)}
		p.Set(f.due[0])
		f.pass(299 * time.Millisecond)
		require.Zero(t, f.sent)
		f.pass(3 * time.Millisecond)
		require.Equal(t, 1, f.sent)
		require.Equal(t, []outbox.Poke{{Target: "default", Partition: 3}}, *pokes)
	})
}

func TestPromoter_FindsWhatOthersHaveSetWithinASecond(t *testing.T) {
	f := &table{}
	promoting(t, f, func(t *testing.T, _ *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		f.pass(10 * time.Millisecond)
		f.due = []time.Time{time.Now()}
		f.pass(time.Second)
		require.Equal(t, 1, f.sent)
	})
}

// So it does while it knows of a later one only.
func TestPromoter_FindsWhatOthersHaveSetBeforeTheTimerItKnows(t *testing.T) {
	f := &table{}
	f.due = []time.Time{time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)} // in an hour
	promoting(t, f, func(t *testing.T, _ *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		f.pass(10 * time.Millisecond)
		f.due = append([]time.Time{time.Now()}, f.due...)
		f.pass(time.Second)
		require.Equal(t, 1, f.sent)
	})
}

func TestPromoter_IsWokenByAnEarlierTimerOnly(t *testing.T) {
	f := &table{}
	f.due = []time.Time{time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)} // in an hour
	promoting(t, f, func(t *testing.T, p *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		require.Equal(t, 1, f.looks)
		p.Set(f.due[0].Add(time.Minute))
		p.Set(f.due[0])
		synctest.Wait()
		require.Equal(t, 1, f.looks)
		p.Set(f.due[0].Add(-time.Minute))
		synctest.Wait()
		require.Equal(t, 2, f.looks)
	})
}

// What was set before a look is seen by it: it isn't looked for once more.
func TestPromoter_LooksOnceForWhatWasSetWhileItWaited(t *testing.T) {
	f := &table{err: errors.New("away")}
	promoting(t, f, func(t *testing.T, p *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		require.Equal(t, 1, f.looks)
		at := time.Now().Add(time.Hour)
		p.Set(at)
		synctest.Wait()
		require.Equal(t, 1, f.looks)
		f.becomes(at)
		f.err = nil
		f.pass(time.Second + time.Millisecond)
		require.Equal(t, 2, f.looks)
	})
}

// A million timers of one moment don't stand before everything else: no more than 50,000
// of their messages are unpublished.
func TestPromoter_WaitsWhileItsMessagesAreUnpublished(t *testing.T) {
	f := &table{due: make([]time.Time, 1_000_000), unpublished: 50_000}
	promoting(t, f, func(t *testing.T, _ *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		f.pass(10*time.Second - time.Millisecond)
		require.Zero(t, f.sent)
		require.Equal(t, 10, f.counts, "counting has its price")
		f.unpublished = 45_001
		f.pass(time.Second)
		require.Zero(t, f.sent, "too little to count again for")
		f.unpublished = 45_000
		f.published = true
		f.pass(time.Second)
		require.Equal(t, 5_000, f.sent)
		f.unpublished = 10_000
		f.pass(time.Second)
		require.Equal(t, 45_000, f.sent)
	})
}

// The broker of one target is away, its messages stay in the outbox: the timers of the others
// are sent in time, those that are set meanwhile, too, and as many as ever at once.
func TestPromoter_ABrokerThatPublishesNothingKeepsNoOtherTargetWaiting(t *testing.T) {
	dead := &table{due: make([]time.Time, 10_000), unpublished: 50_000}
	well := &table{}
	promoting(t, targets{"dead": dead, "well": well}, func(t *testing.T, p *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		dead.pass(5 * time.Second)
		well.sendsInTime(t, p)
		well.becomes(make([]time.Time, 60_000)...)
		well.pass(time.Second)
		require.Equal(t, 60_001, well.sent)
		require.Zero(t, dead.sent)
		require.LessOrEqual(t, dead.counts, 8, "it is counted no more often, whatever the others do")
	})
}

// A target whose timers can't be read is tried ever less often, is told of, and keeps no other
// waiting.
func TestPromoter_ATargetThatFailsKeepsNoOtherWaiting(t *testing.T) {
	bad, well := &table{due: make([]time.Time, 3), bad: errors.New("is not what was stored")}, &table{}
	promoting(t, targets{"bad": bad, "well": well}, func(t *testing.T, p *timerdb.Promoter, _ *[]outbox.Poke, log *bytes.Buffer) {
		bad.pass(20 * time.Second)
		well.sendsInTime(t, p)
		require.Contains(t, p.Trouble().Error, "is not what was stored")
		well.pass(40 * time.Second)
		require.Equal(t, 6, bad.tries, "at 0, 1, 3, 7, 15 and 31 s")
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log)
		bad.becomes() // somebody has stopped them
		well.pass(2 * time.Second)
		require.Nil(t, p.Trouble())
	})
}

// The pause between two counts grows with what a count takes.
func TestPromoter_CountsSeldomIfACountTakesLong(t *testing.T) {
	f := &table{due: make([]time.Time, 10), unpublished: 50_000, slow: 2 * time.Second}
	promoting(t, f, func(t *testing.T, _ *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
		f.pass(100 * time.Second)
		require.Equal(t, 5, f.counts)
	})
}

func TestPromoter_LogsAFailureWhenItBeginsAndWhenItEnds(t *testing.T) {
	f := &table{err: errors.New("gone")}
	promoting(t, f, func(t *testing.T, p *timerdb.Promoter, _ *[]outbox.Poke, log *bytes.Buffer) {
		f.due = []time.Time{time.Now()}
		p.Set(time.Now())
		f.pass(time.Minute)
		require.Equal(t, 6, f.looks, "at 0, 1, 3, 7, 15 and 31 s: nobody is asked more often because it fails")
		require.Equal(t, "send timers that are due", p.Trouble().What)
		f.err, f.crash = nil, true
		f.pass(30 * time.Second)
		require.Contains(t, p.Trouble().Error, "boom")
		f.crash = false
		f.pass(30 * time.Second)
		require.Nil(t, p.Trouble())
		require.Equal(t, 1, f.sent)
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log)
		require.Equal(t, 1, strings.Count(log.String(), "level=INFO"), log)
	})
}

func TestPromoter_LooksAgainSoonWhereAnotherIsAtItOrHasARowLocked(t *testing.T) {
	for _, f := range []*table{{busy: true}, {left: true}} {
		f.due = []time.Time{{}}
		promoting(t, f, func(t *testing.T, _ *timerdb.Promoter, _ *[]outbox.Poke, _ *bytes.Buffer) {
			looks := f.looks
			f.pass(250 * time.Millisecond)
			require.Equal(t, looks+2, f.looks)
			f.busy, f.left = false, false
			f.pass(100 * time.Millisecond)
			require.Equal(t, 1, f.sent)
		})
	}
}
