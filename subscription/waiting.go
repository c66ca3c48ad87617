package subscription

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/uow"
)

const (
	// maxWaiting is how many messages may wait for their keys while they are not
	// acknowledged. It is less than the window of any broker: others have to have room.
	maxWaiting = 256
	maxIdle    = 16 << 20 // Their bodies.
	// waitBatch is how many keys are put aside in one transaction.
	waitBatch = 128
	// crowdTime is how long more may wait than should, before that is told.
	crowdTime = 5 * time.Second
	// crowdRetry is the pause before another try to put something aside.
	crowdRetry = time.Second
	// countEvery is how often it is counted how many wait in the table.
	countEvery = 5 * time.Second
	countRest  = 50 // times as long as it took
)

// crowd is that more messages wait than should.
type crowd struct {
	since time.Time // Zero: it isn't so.
	why   error     // Why they can't be put aside; nil: they can.
	told  bool
}

// wait notes that so many more messages wait, or fewer. The lock is held.
func (s *session) wait(messages, bytes int) {
	s.waiting += messages
	s.idle += bytes
	if s.crowded() {
		if s.crowd.since.IsZero() {
			s.crowd.since = time.Now()
		}
		signal(s.over)
		return
	}
	if s.crowd.told {
		s.r.log.Info("messages of waiting keys are few again, and others are taken", "after", time.Since(s.crowd.since).Round(time.Second))
	}
	s.crowd = crowd{}
}

func (s *session) crowded() bool { return s.waiting > maxWaiting || s.idle > maxIdle }

// waits says how many messages wait, and why too many do.
func (s *session) waits() (waiting int64, stalled string, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.crowd; c.why != nil && time.Since(c.since) >= crowdTime {
		stalled, since = c.why.Error(), c.since
	}
	return int64(s.waiting), stalled, since
}

// postpone puts messages whose keys wait longest into the table whenever too many
// wait. There the runners of the subscription go on with them when their time has
// come; here they would keep others from being taken.
func (s *session) postpone() {
	var again <-chan time.Time
	for {
		select {
		case <-s.quit:
			return
		case <-s.over:
		case <-again:
		}
		again = nil
		if err := s.relieve(); err != nil {
			s.tell(err)
			again = time.After(crowdRetry)
		}
	}
}

// relieve goes on until there is no crowd, and says why it can't.
func (s *session) relieve() error {
	for {
		room, err := s.r.room.left(s.work)
		if err != nil {
			return err
		}
		queues, err := s.pick(min(waitBatch, room))
		if len(queues) == 0 {
			return err
		}
		if err := s.store(queues); err != nil {
			return err
		}
	}
}

// pick takes those that wait longest, up to limit, until half of what may wait is
// left. No lane has them then.
func (s *session) pick(limit int64) (queues []*queue, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.crowded() {
		return nil, nil
	}
	var all []*queue
	for _, q := range s.queues {
		if q.retry != nil && q.storable {
			all = append(all, q)
		}
	}
	if len(all) == 0 {
		return nil, errFull
	}
	slices.SortFunc(all, func(a, b *queue) int { return b.due.Compare(a.due) })
	waiting, idle := s.waiting, s.idle
	for _, q := range all {
		if int64(len(queues)) == limit || waiting <= maxWaiting/2 && idle <= maxIdle/2 {
			break
		}
		if !q.retry.Stop() {
			continue // it goes on just now
		}
		waiting -= len(q.messages)
		idle -= q.bytes()
		q.retry = nil
		q.messages[0].working = true
		queues = append(queues, q)
	}
	s.waiting, s.idle = waiting, idle
	return queues, nil
}

// store puts the first messages of queues into the table. What is behind them follows
// by the lanes.
func (s *session) store(queues []*queue) error {
	messages := make([]*message, len(queues))
	waits := make([]time.Duration, len(queues))
	s.mu.Lock() // Others of the key may arrive meanwhile.
	for i, q := range queues {
		messages[i], waits[i] = q.messages[0], max(time.Until(q.due), 0)
	}
	s.mu.Unlock()
	err := s.r.postpone(s.work, messages, waits)
	if errors.Is(err, errSettled) && len(queues) > 1 {
		err = nil
		for _, q := range queues { // one of them was handled, or its key is held
			err = cmp.Or(err, s.store([]*queue{q}))
		}
		return err
	}
	known := err == nil
	if errors.Is(err, errSettled) {
		known = s.r.lookUp(s.work, messages[0]) == nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range queues {
		m := messages[i]
		m.working = false
		switch {
		case err == nil:
			s.settle(m, postponed)
			q.stand(m.behind)
			s.next(q, 1)
		case s.work.Err() != nil: // it is given back with the rest
		case known:
			s.ready <- q
		default:
			s.pause(q, max(time.Until(q.due), crowdRetry))
			q.storable = true
		}
	}
	s.wait(0, 0)
	if known {
		return nil
	}
	return err
}

// tell notes why what waits can't be put aside, and logs it once if that lasts.
func (s *session) tell(why error) {
	if s.work.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crowd.since.IsZero() {
		return
	}
	s.crowd.why = why
	if lasted := time.Since(s.crowd.since); lasted >= crowdTime && !s.crowd.told {
		s.crowd.told = true
		s.r.note(why)
		s.r.log.Warn("too many messages wait for their keys: no others can be taken, and dead_letters is full",
			"waiting", s.waiting, "bytes", s.idle, "since", s.crowd.since.UTC(), "error", why)
	}
}

// postpone puts messages into dead_letters, to be handled from there after their
// waits: all of them, or none.
func (r *Runner) postpone(ctx context.Context, messages []*message, waits []time.Duration) error {
	statements := []uow.Statement{claimRows(r.stream, messages...)}
	for i, m := range messages {
		row, err := waitRow(r.provider.DB().Dialect(), r.stream, m, waits[i])
		if err != nil {
			return err
		}
		statements = append(statements, row)
		if m.counted {
			statements = append(statements, r.incoming.forget(m))
		}
	}
	if err := r.do(ctx, statements...); err != nil {
		return fmt.Errorf("subscription: put %d messages aside until their time has come: %w", len(messages), err)
	}
	r.room.add(len(messages))
	r.log.Debug("messages wait in dead_letters, so that others are taken", "messages", len(messages))
	return nil
}

// room is how many messages wait in the table, of those that may. It is counted now
// and then: all runners of the subscription put some there.
type room struct {
	provider     uow.Provider
	subscription string
	limit        int64

	mu   sync.Mutex
	n    int64
	next time.Time // When to count again.
}

// left says how many more may wait there; if none, the error says so.
func (r *room) left(ctx context.Context) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if begin := time.Now(); !begin.Before(r.next) {
		err := r.provider.Reader().NewRaw("SELECT (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE subscription = ? AND status = 'waiting' LIMIT ?) AS w)"+
			" + (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE subscription = ? AND status IN ('held', 'replay') AND holds LIMIT ?) AS h)"+
			" + (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE subscription = ? AND status = 'early' LIMIT ?) AS e)",
			r.subscription, bun.Safe(fmt.Sprint(r.limit)), r.subscription, bun.Safe(fmt.Sprint(r.limit)), r.subscription, bun.Safe(fmt.Sprint(r.limit))).Scan(ctx, &r.n)
		if err != nil {
			return 0, fmt.Errorf("subscription: count what waits in dead_letters: %w", err)
		}
		r.next = time.Now().Add(max(countEvery, countRest*time.Since(begin)))
	}
	if r.n >= r.limit {
		return 0, errNoRoom
	}
	return r.limit - r.n, nil
}

func (r *room) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += int64(n)
}
