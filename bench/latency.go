package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

const latencyWriters = 4

// percentiles, and the rate at which units were really committed.
var percentiles = []string{"p50", "p99", "max", "units/s"}

// stopwatch notes for each key when its unit's commit returned and when the
// broker had acknowledged its message.
type stopwatch struct {
	mu        sync.Mutex
	committed map[string]time.Time
	answered  map[string]time.Time
	twice     int
}

func newStopwatch() *stopwatch {
	return &stopwatch{committed: map[string]time.Time{}, answered: map[string]time.Time{}}
}

func (s *stopwatch) commit(key string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed[key] = at
}

func (s *stopwatch) answer(at time.Time, messages ...broker.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		if _, again := s.answered[m.Key]; again {
			s.twice++
		}
		s.answered[m.Key] = at
	}
}

// percentiles of what was committed in the given time, in milliseconds. Every
// commit must have been answered once.
func (s *stopwatch) percentiles(from, to time.Time) (map[string]float64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.twice > 0 || len(s.answered) != len(s.committed) {
		return nil, fmt.Errorf("%d units had %d answers, %d of them for the second time", len(s.committed), len(s.answered), s.twice)
	}
	var took []float64
	for key, begin := range s.committed {
		if begin.Before(from) || !begin.Before(to) {
			continue
		}
		// The wake-up is given before the commit returns to the caller: the
		// answer can be there first.
		took = append(took, max(0, s.answered[key].Sub(begin).Seconds()*1000))
	}
	if len(took) == 0 {
		return nil, errors.New("nothing was committed")
	}
	slices.Sort(took)
	at := func(p float64) float64 { return took[int(p*float64(len(took)-1))] }
	return map[string]float64{"p50": at(0.5), "p99": at(0.99), "max": at(1), "units/s": float64(len(took)) / to.Sub(from).Seconds()}, nil
}

func (s *stopwatch) missing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.committed) - len(s.answered)
}

// watched is a broker whose answers are noted.
type watched struct {
	broker.Broker
	watch *stopwatch
}

func (b watched) Publish(ctx context.Context, messages []broker.Message) error {
	err := b.Broker.Publish(ctx, messages)
	if err == nil {
		b.watch.answer(time.Now(), messages...)
	}
	return err
}

// latency is the time from the return of a commit to Kafka's acknowledgement of
// its message, at a fixed rate of units per second.
func latency(perSecond int, lasts time.Duration) func(context.Context, *world) (map[string]float64, error) {
	return func(ctx context.Context, w *world) (got map[string]float64, err error) {
		b, end, err := w.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		if err := w.empty(ctx); err != nil {
			return nil, err
		}
		watch := newStopwatch()
		writer := func() error {
			p := newPaper()
			if err := w.papers.Save(ctx, p); err != nil {
				return err
			}
			watch.commit(p.ID(), time.Now())
			return nil
		}
		err = w.running(ctx, watched{b, watch}, outbox.Config{}, func(ctx context.Context) error {
			got, err = paced(ctx, watch, perSecond, lasts, slices.Repeat([]func() error{writer}, latencyWriters))
			return err
		})
		if err != nil {
			return nil, err
		}
		return got, w.delivered(ctx, len(watch.committed), false)
	}
}

// latencyByHand is the same with writers and a relay that are written by hand.
func latencyByHand(perSecond int, lasts time.Duration) func(*tables) work {
	return func(t *tables) work {
		return func(ctx context.Context, w *world) (got map[string]float64, err error) {
			if err := w.anew(ctx); err != nil {
				return nil, err
			}
			client, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchCompression(kgo.SnappyCompression()), kgo.ProducerLinger(0))
			if err != nil {
				return nil, err
			}
			defer client.Close()
			watch := newStopwatch()
			relaying, stop := context.WithCancel(ctx)
			p := &prompt{
				dsn: w.dsn, topic: w.prefix() + topic, tables: t, client: client, watch: watch,
				woken: make(chan struct{}, 1), landed: make(chan struct{}, 1), out: map[int64]bool{},
			}
			relayed := make(chan error, 1)
			go func() { relayed <- p.run(relaying) }()
			defer func() {
				stop()
				err = errors.Join(<-relayed, err)
			}()
			writers, end, err := w.hands(ctx, t, latencyWriters, func(id string) {
				watch.commit(id, time.Now())
				p.wake()
			})
			if err != nil {
				return nil, err
			}
			defer end()
			if got, err = paced(ctx, watch, perSecond, lasts, writers); err != nil {
				return nil, err
			}
			return got, w.delivered(ctx, len(watch.committed), false)
		}
	}
}

// paced lets writers take turns at a fixed rate, whether or not the one before
// has finished, and measures after a warm-up.
func paced(ctx context.Context, watch *stopwatch, perSecond int, lasts time.Duration, writers []func() error) (map[string]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	from := begin.Add(2 * warmUp)
	to := from.Add(lasts)
	step := time.Second / time.Duration(perSecond)
	errs := make([]error, len(writers))
	var working sync.WaitGroup
	for i, write := range writers {
		working.Go(func() {
			for n := i; errs[i] == nil; n += len(writers) {
				at := begin.Add(time.Duration(n) * step)
				if !at.Before(to) {
					return
				}
				pause(ctx, time.Until(at))
				if !time.Now().Before(to) || ctx.Err() != nil {
					return
				}
				if errs[i] = write(); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	working.Wait()
	for deadline := time.Now().Add(time.Minute); watch.missing() > 0 && ctx.Err() == nil && time.Now().Before(deadline); {
		pause(ctx, 10*time.Millisecond)
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, err
	}
	return watch.percentiles(from, to)
}

// delivered says whether the topic holds the message of every unit, none twice
// unless it may be.
func (w *world) delivered(ctx context.Context, units int, twice bool) error {
	records, err := w.read(ctx, w.prefix()+topic)
	if err != nil {
		return err
	}
	keys := map[string]bool{}
	for _, r := range records {
		keys[string(r.Key)] = true
	}
	if len(keys) != units || len(records) != units && !twice {
		return fmt.Errorf("%d units gave %d messages of %d keys", units, len(records), len(keys))
	}
	return nil
}
