package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// measuring is how much of each condition is measured.
type measuring struct {
	live, idle time.Duration
	// settle is how long a backend that has nothing to do may wait until it tells how
	// many transactions it had, which is 10 s.
	settle  time.Duration
	drained int
}

func newMeasuring(scale float64) measuring {
	long := func(d, least time.Duration) time.Duration { return max(least, time.Duration(float64(d)*scale)) }
	return measuring{
		live: long(envelopeLive, 2*time.Second), idle: long(envelopeIdle, 5*time.Second), settle: 11 * time.Second,
		drained: max(2_000, int(envelopeDrained*scale)),
	}
}

// run makes a condition and measures under it: the first live row of a new engine,
// live rows at a fixed rate, live rows at once, and nothing to do.
func (m measuring) run(ctx context.Context, w *world, c condition) (looks, error) {
	f := looks{name: c.name, of: map[string]float64{}}
	k, end, err := w.broker(ctx)
	if err != nil {
		return f, err
	}
	defer end()
	if err := w.make(ctx, c); err != nil {
		return f, err
	}
	if c.snapshot > 0 {
		release, err := w.old(ctx, k, c.snapshot)
		if err != nil {
			return f, err
		}
		defer release()
	}
	served, end, err := w.provided(ctx, max(c.schemas, 1))
	if err != nil {
		return f, err
	}
	defer end()
	if !c.drains { // the row that waits when the engine starts
		if err := w.live(ctx, 1); err != nil {
			return f, err
		}
	}
	b := &beside{Broker: k}
	others, end, err := w.others(ctx, b, c.engines-1)
	if err != nil {
		return f, err
	}
	defer end()
	began := time.Now()
	return f, served.running(ctx, b, outbox.Config{}, func(ctx context.Context) error {
		if err := b.reached(ctx, 1); err != nil {
			return err
		}
		f.of["first ms"] = time.Since(began).Seconds() * 1000
		return others(ctx, func(ctx context.Context) error { return m.phases(ctx, w, c, b, f.of) })
	})
}

// make fills empty tables with what a condition has.
func (w *world) make(ctx context.Context, c condition) error {
	if err := w.empty(ctx); err != nil {
		return err
	}
	for _, l := range c.lots {
		if err := w.add(ctx, l); err != nil {
			return err
		}
	}
	return w.tidy(ctx, product.names...)
}

// others runs so many more engines beside what it is given, and the end of their
// connections.
func (w *world) others(ctx context.Context, b broker.Broker, n int) (beside func(context.Context, func(context.Context) error) error, end func(), err error) {
	var ends []func()
	end = func() {
		for _, e := range ends {
			e()
		}
	}
	beside = func(ctx context.Context, do func(context.Context) error) error { return do(ctx) }
	for range n {
		other, closing, err := w.apart(ctx, w.narrow(processConns))
		if err != nil {
			end()
			return nil, nil, err
		}
		ends = append(ends, closing)
		inner := beside
		beside = func(ctx context.Context, do func(context.Context) error) error {
			return other.running(ctx, b, outbox.Config{}, func(ctx context.Context) error { return inner(ctx, do) })
		}
	}
	return beside, end, nil
}

// old keeps a snapshot of what there was before so many rows came and went.
func (w *world) old(ctx context.Context, b broker.Broker, rows int) (release func(), err error) {
	release, err = w.snapshot(ctx, time.Hour)
	if err != nil {
		return nil, err
	}
	all, err := w.backlog(ctx, drainage{events: rows, keys: liveKeys})
	if err == nil {
		err = w.insert(ctx, all)
	}
	if err == nil {
		err = w.running(ctx, b, outbox.Config{}, func(ctx context.Context) error { return w.drained(ctx, rows) })
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// live adds rows that can be published at once.
func (w *world) live(ctx context.Context, n int) error {
	rows, err := w.backlog(ctx, drainage{events: n, keys: liveKeys})
	if err != nil {
		return err
	}
	return w.insert(ctx, rows)
}

func (m measuring) phases(ctx context.Context, w *world, c condition, b *beside, got map[string]float64) error {
	if c.drains {
		return m.drain(ctx, w, b, min(b.count()+m.drained, c.lots[0].rows), got)
	}
	pause(ctx, 2*warmUp)
	watch := newStopwatch()
	end := b.timed(watch)
	unit := func() error {
		p := newPaper()
		err := w.papers.Save(ctx, p)
		watch.commit(p.ID(), time.Now())
		return err
	}
	live, err := paced(ctx, watch, envelopeRate, m.live, slices.Repeat([]func() error{unit}, latencyWriters))
	end()
	if err != nil {
		return err
	}
	got["live p50 ms"], got["live p99 ms"] = live["p50"], live["p99"]
	before := b.count()
	if err := m.drain(ctx, w, b, before+m.drained, got, m.drained); err != nil {
		return err
	}
	pause(ctx, m.settle)
	return m.rest(ctx, w, float64(max(c.engines, c.schemas, 1)), got)
}

// drain adds live rows, if any, and waits until so many messages in all are answered.
func (m measuring) drain(ctx context.Context, w *world, b *beside, until int, got map[string]float64, live ...int) error {
	before := b.count()
	spent, err := w.spending(ctx, followEvery)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, n := range live {
		if err := w.live(ctx, n); err != nil {
			return errors.Join(err, spent.end(ctx, nil))
		}
	}
	// Nobody tells the engine of rows that were inserted past it: from its first
	// answer on, unless that was all.
	if err := b.reached(ctx, before+1); err != nil {
		return errors.Join(err, spent.end(ctx, nil))
	}
	first, begun := b.count(), time.Now()
	if first >= until {
		first, begun = before, began
	}
	if err := b.reached(ctx, until); err != nil {
		return errors.Join(err, spent.end(ctx, nil))
	}
	got["rows/s"] = float64(b.count()-first) / time.Since(begun).Seconds()
	rows := float64(b.count() - before)
	return spent.end(ctx, func(s spending, _ time.Duration) {
		if s.seen {
			got["server µs/row"] = float64(s.processor.Microseconds()) / rows
		}
	})
}

// rest measures what is spent on nothing, by each of those that do nothing.
func (m measuring) rest(ctx context.Context, w *world, by float64, got map[string]float64) error {
	spent, err := w.spending(ctx, followEvery)
	if err != nil {
		return err
	}
	own := processorTime()
	pause(ctx, m.idle)
	own = processorTime() - own
	return spent.end(ctx, func(s spending, took time.Duration) {
		got["idle transactions/s"] = float64(s.transactions) / took.Seconds() / by
		got["idle process ms/s"] = own.Seconds() * 1000 / took.Seconds() / by
		if s.seen {
			got["idle server ms/s"] = s.processor.Seconds() * 1000 / took.Seconds() / by
		}
	})
}

// processorTime is what this program has spent.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// spending is what the server has spent on this database, but for the connection
// that fills it.
type spending struct {
	transactions int64
	processor    time.Duration
	seen         bool // whether processor is known
}

// spender follows the server's processes for this database: those that end
// meanwhile count with what was seen of them last.
type spender struct {
	c       *pgx.Conn // to another database, so as not to count itself
	w       *world
	began   time.Time
	at      int64
	cancel  context.CancelFunc
	working sync.WaitGroup
	err     error

	start, last map[int]time.Duration
}

const (
	followEvery   = 250 * time.Millisecond
	followClosely = 50 * time.Millisecond // those that end soon after their work
)

func (w *world) spending(ctx context.Context, every time.Duration) (*spender, error) {
	c, err := pgx.Connect(ctx, w.admin)
	if err != nil {
		return nil, err
	}
	s := &spender{c: c, w: w, began: time.Now(), start: map[int]time.Duration{}, last: map[int]time.Duration{}}
	if s.at, err = s.transactions(ctx); err == nil {
		err = s.look(ctx, true)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	following, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	s.working.Go(func() {
		for following.Err() == nil && s.err == nil {
			pause(following, every)
			s.err = s.look(context.WithoutCancel(following), false)
		}
	})
	return s, nil
}

// transactions are those that the server's processes have told of.
func (s *spender) transactions(ctx context.Context) (n int64, err error) {
	err = s.c.QueryRow(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", s.w.name).Scan(&n)
	return n, err
}

func (s *spender) look(ctx context.Context, first bool) error {
	found, err := s.c.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend' AND pid <> $2", s.w.name, s.w.sql.PgConn().PID())
	if err != nil {
		return err
	}
	pids, err := pgx.CollectRows(found, pgx.RowTo[int])
	for _, pid := range pids {
		if spent, ok := backendTime(pid); ok {
			s.last[pid] = spent
			if first {
				s.start[pid] = spent
			}
		}
	}
	return err
}

// end tells what was spent since the beginning.
func (s *spender) end(ctx context.Context, tell func(spending, time.Duration)) error {
	s.cancel()
	s.working.Wait()
	took := time.Since(s.began)
	now, err := s.transactions(ctx)
	if err = errors.Join(s.err, err, s.c.Close(ctx)); err != nil || tell == nil {
		return err
	}
	total := spending{transactions: now - s.at, seen: len(s.last) > 0}
	for pid, spent := range s.last {
		total.processor += spent - s.start[pid]
	}
	tell(total, took)
	return nil
}

// backendTime is the processor time of a server's process, if it is on this machine.
func backendTime(pid int) (time.Duration, bool) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "postgres") {
		return 0, false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, false
	}
	spent, _, _ := strings.Cut(string(stat), " ")
	ns, err := strconv.ParseInt(spent, 10, 64)
	return time.Duration(ns), err == nil
}
