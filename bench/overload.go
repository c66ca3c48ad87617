package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

const (
	overloadLease   = 3 * time.Second
	overloadWriters = 2

	silentEvents  = 10_000
	silentTimeout = time.Second
	silentLasts   = 6 * time.Second
)

// overloadMetrics: after all connections were ended, the lane makes headway again
// after so long; the longest time without any; and what writers reach, refused units
// left out.
var overloadMetrics = []string{"headway after s", "longest silence s", "units/s"}

// answers are the times of a broker's answers.
type answers struct {
	broker.Broker
	mu    sync.Mutex
	times []time.Time
}

func (a *answers) Publish(ctx context.Context, messages []broker.Message) error {
	err := a.Broker.Publish(ctx, messages)
	if err == nil {
		a.mu.Lock()
		a.times = append(a.times, time.Now())
		a.mu.Unlock()
	}
	return err
}

// after is the first answer after a moment, and the longest time without one until
// then or later.
func (a *answers) after(moment time.Time) (first time.Time, silence time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sorted := slices.SortedFunc(slices.Values(a.times), time.Time.Compare)
	for i, at := range sorted {
		if at.After(moment) && first.IsZero() {
			first = at
		}
		if i > 0 {
			silence = max(silence, at.Sub(sorted[i-1]))
		}
	}
	return first, silence
}

// overload is a short lease while writers take all that the machine gives, and
// PostgreSQL ends every connection, as a restart would.
func overload(lasts time.Duration) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		heard := &answers{Broker: b}
		var units atomic.Int64
		var cut time.Time
		err = w.running(ctx, heard, outbox.Config{Lease: overloadLease}, func(ctx context.Context) error {
			writing, stop := context.WithCancel(ctx)
			var working sync.WaitGroup
			for range overloadWriters {
				working.Go(func() {
					for writing.Err() == nil {
						if w.papers.Save(ctx, newPaper()) == nil {
							units.Add(1)
						}
					}
				})
			}
			pause(ctx, max(lasts/2, overloadLease))
			cut = time.Now()
			_, err := w.sql.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			pause(ctx, lasts)
			stop()
			working.Wait()
			return errors.Join(err, w.drained(ctx, uncounted))
		})
		if err != nil {
			return nil, err
		}
		first, silence := heard.after(cut)
		if first.IsZero() {
			return nil, errors.New("nothing was published any more")
		}
		// Whether a unit whose connection ended was committed, only the table knows.
		var stored int
		if err := w.sql.QueryRow(ctx, "SELECT count(*) FROM documents").Scan(&stored); err != nil {
			return nil, err
		}
		took := max(lasts/2, overloadLease) + lasts
		return map[string]float64{
			"headway after s": first.Sub(cut).Seconds(), "longest silence s": silence.Seconds(),
			"units/s": float64(units.Load()) / took.Seconds(),
		}, w.delivered(ctx, stored, true)
	}
}

// afterOutageMetrics: what is published per second from the first answer on, until
// nothing waits; when that is, from the moment on at which the broker answers again; and
// how many rows had been in calls that nobody answered.
var afterOutageMetrics = []string{"rate", "first after s", "unanswered rows"}

// silent takes calls and, as long as it is, answers none.
type silent struct {
	answers
	is   atomic.Bool
	rows map[string]bool
}

func (s *silent) Publish(ctx context.Context, messages []broker.Message) error {
	if !s.is.Load() {
		return s.answers.Publish(ctx, messages)
	}
	s.mu.Lock()
	for _, m := range messages {
		s.rows[m.ID] = true
	}
	s.mu.Unlock()
	<-ctx.Done()
	return broker.Classify(broker.Unknown, context.Cause(ctx))
}

// afterOutage is the drain of a backlog whose first calls nobody answered, or of
// one like it without such calls.
func afterOutage(mute bool) work {
	return func(ctx context.Context, w *world) (map[string]float64, error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		d := drainage{events: silentEvents, keys: silentEvents * 2 / 3}
		filled, err := w.fill(ctx, d)
		if err != nil {
			return nil, err
		}
		s := &silent{answers: answers{Broker: b}, rows: map[string]bool{}}
		s.is.Store(mute)
		began := time.Now()
		var took time.Duration
		// No row is to wait for its next attempt: an outage costs none.
		err = w.running(ctx, s, outbox.Config{PublishTimeout: silentTimeout}, func(ctx context.Context) error {
			if mute {
				pause(ctx, silentLasts)
				began = time.Now()
				s.is.Store(false)
			}
			err := w.drained(ctx, d.events)
			took = time.Since(began)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%w, %d rows had been in unanswered calls", err, len(s.rows))
		}
		first, _ := s.after(began)
		// What the lane waits for until it tries again is not what the backlog takes.
		took -= first.Sub(began)
		return map[string]float64{
			"rate": float64(d.events) / took.Seconds(), "first after s": first.Sub(began).Seconds(), "unanswered rows": float64(len(s.rows)),
		}, w.arrived(ctx, filled)
	}
}
