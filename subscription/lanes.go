package subscription

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// lane works on one queue after the other.
func (s *session) lane() {
	for {
		select {
		case <-s.quit: // before ready, if both can be
			return
		default:
		}
		select {
		case <-s.quit:
			return
		case q := <-s.ready:
			p, ok := s.r.valve.enter(s.quit)
			if !ok {
				return
			}
			if !s.together(p, q) {
				s.step(p, q)
			}
		}
	}
}

// step works on the first message of a queue.
func (s *session) step(p pass, q *queue) {
	s.mu.Lock()
	m := q.messages[0]
	if s.dropLost(m); len(m.deliveries) == 0 {
		s.sweep(q)
		s.mu.Unlock()
		s.r.valve.done(p)
		return
	}
	m.working = true
	ctx, cancel := s.unlessLost(m)
	s.mu.Unlock()
	result, wait := s.r.attempt(ctx, p, m)
	cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	m.working = false
	switch result {
	case aborted:
		// Stopped: it is given back with the rest. Lost: the next step sees to it.
		if s.work.Err() == nil {
			s.ready <- q
		}
	case failed, delayed:
		if wait == 0 {
			s.ready <- q
		} else {
			s.pause(q, wait)
			q.storable = m.behind == 0
		}
	default:
		s.settle(m, result)
		if result == setAside && (s.r.stream.OnParked == Hold || m.behind > 0) {
			q.stand(m.behind)
		}
		s.next(q, 1)
	}
}

// unlessLost is the context in which messages are worked on: it ends when the
// broker has taken one of them back. The lock is held.
func (s *session) unlessLost(messages ...*message) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(s.work)
	watched := map[<-chan struct{}]bool{nil: true}
	for _, m := range messages {
		taken := m.deliveries[0].Lost
		if watched[taken] {
			continue
		}
		watched[taken] = true
		go func() {
			select {
			case <-taken:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// run is the beginning of a queue that is handled together with others.
type run struct {
	queue    *queue
	messages []*message
}

// together handles messages of q and of other queues that are ready in one unit of
// work, and says whether it did. Where one fails, nothing has happened, and each
// goes by itself; so whatever is special about a message is done by step.
func (s *session) together(p pass, q *queue) bool {
	if s.r.stream.Batch == 1 || p > 0 || s.r.presence.careful() {
		return false
	}
	s.mu.Lock()
	first := s.begin(q, s.r.stream.Batch)
	if len(first) == 0 {
		s.mu.Unlock()
		return false
	}
	runs := []run{{q, first}}
	all := slices.Clone(first)
	for more := true; more && len(all) < s.r.stream.Batch; {
		select {
		case other := <-s.ready:
			if begun := s.begin(other, s.r.stream.Batch-len(all)); len(begun) > 0 {
				runs = append(runs, run{other, begun})
				all = append(all, begun...)
			} else {
				s.ready <- other
				more = false
			}
		default:
			more = false
		}
	}
	ctx, cancel := s.unlessLost(all...)
	s.mu.Unlock()
	ignoring, err := s.r.attemptAll(ctx, all)
	cancel()

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range runs {
		for _, m := range u.messages {
			m.working, m.single = false, err != nil
			switch {
			case err != nil:
			case ignoring[m]:
				s.settle(m, ignored)
			default:
				s.settle(m, handled)
			}
		}
		if err != nil {
			s.ready <- u.queue
		} else {
			s.next(u.queue, len(u.messages))
		}
	}
	return true
}

// begin takes up to limit messages from the start of a queue that have nothing
// special about them. The lock is held.
func (s *session) begin(q *queue, limit int) []*message {
	n := 0
	for _, m := range q.messages[:min(limit, len(q.messages))] {
		if s.dropLost(m); len(m.deliveries) == 0 || m.bad != nil || m.single || m.counted || m.behind > 0 {
			break
		}
		m.working = true
		n++
	}
	return slices.Clone(q.messages[:n])
}

// pause lets a queue wait. The lock is held.
func (s *session) pause(q *queue, d time.Duration) {
	q.due, q.storable = time.Now().Add(d), false
	s.wait(len(q.messages), q.bytes())
	q.retry = time.AfterFunc(d, func() { s.resume(q) })
	signal(s.freed)
}

// resume ends the wait of a queue.
func (s *session) resume(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.retry = nil
	s.wait(-len(q.messages), -q.bytes())
	s.ready <- q
}

// dropLost forgets the deliveries of m that the broker took back: they come
// again, or have come. The lock is held.
func (s *session) dropLost(m *message) {
	before := len(m.deliveries)
	m.deliveries = slices.DeleteFunc(m.deliveries, func(d broker.Delivery) bool { return lost(d) })
	if n := before - len(m.deliveries); n > 0 {
		s.drop(n, n*len(m.Body))
	}
}

// sweep drops what the broker took back from a queue, the first message among
// it. What remains may be taken back too, and only not be told yet: going on at
// once could put it before what comes again. The lock is held.
func (s *session) sweep(q *queue) {
	key := q.messages[0].key
	q.messages = slices.DeleteFunc(q.messages, func(m *message) bool {
		if s.dropLost(m); len(m.deliveries) > 0 {
			return false
		}
		s.forget(m)
		return true
	})
	if len(q.messages) == 0 {
		delete(s.queues, key)
		return
	}
	s.pause(q, regroup)
}

// settle leaves m to be acknowledged. The lock is held.
func (s *session) settle(m *message, result outcome) {
	s.forget(m)
	s.settled = append(s.settled, m.deliveries...)
	s.floors.settle(m.spots)
	s.r.count(result, int64(len(m.deliveries)))
	if result == handled {
		s.r.evictor.beyond(m.id, m.sent)
	}
	signal(s.acks)
}

func (s *session) forget(m *message) {
	if s.known[m.id] == m {
		delete(s.known, m.id)
	}
}

// next goes on behind the first messages of a queue. The lock is held.
func (s *session) next(q *queue, n int) {
	key := q.messages[0].key
	clear(q.messages[:n])
	q.messages = q.messages[n:]
	if len(q.messages) == 0 {
		delete(s.queues, key)
		return
	}
	s.ready <- q
}
