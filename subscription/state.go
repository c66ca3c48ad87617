package subscription

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// glance is how often a consumer is asked how it fares.
const glance = 500 * time.Millisecond

var errNotJoined = errors.New("it is not in its group yet")

// standing is how a runner stands with its broker: what its consumer says or, without
// one that does, what came of joining and receiving.
type standing struct {
	mu       sync.Mutex
	consumer broker.Stateful // Nil: there is none, or it doesn't say.
	state    broker.State    // Without it.
	missed   int64           // By the consumers before, and by this one as of the last look.
	before   int64           // By the consumers before.
	missedAt time.Time       // When more had been missed than at the look before.
	told     int64           // Of those, the log has told.
}

// begin notes that the runner tries to have one.
func (s *standing) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Since = time.Now()
}

// join notes that c is the runner's.
func (s *standing) join(c broker.Consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer, _ = c.(broker.Stateful)
	s.before = s.missed
	s.state = broker.State{Joined: true, Since: time.Now()}
}

// leave notes that there is no consumer, and why.
func (s *standing) leave(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.look()
	s.consumer = nil
	s.state = broker.State{Since: last.Since, LastError: err}
	if last.Joined {
		s.state.Since = time.Now()
	}
}

// fail notes what keeps a runner without a consumer from having one.
func (s *standing) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.LastError = err
}

// now is how it stands.
func (s *standing) now() (state broker.State, missedAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state = s.look()
	return state, s.missedAt
}

// news is how many more were missed than it said before.
func (s *standing) news() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.missed - s.told
	s.told = s.missed
	return n
}

// look asks the consumer. The lock is held.
func (s *standing) look() broker.State {
	state := s.state
	if s.consumer != nil {
		state = s.consumer.State()
	}
	if missed := s.before + state.Missed; missed > s.missed {
		s.missed, s.missedAt = missed, time.Now()
	}
	state.Missed = s.missed
	return state
}

// watch notes how the consumer fares, until ctx is done: to a runner that gets no
// messages, one that can't have any looks like one for which there are none.
func (s *session) watch(ctx context.Context) {
	if _, ok := s.consumer.(broker.Stateful); !ok {
		return
	}
	look := time.NewTicker(glance)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		state, _ := s.r.standing.now()
		switch {
		case state.LastError != nil:
			s.r.brokerDown(state.LastError)
		case state.Joined:
			s.r.brokerUp()
		}
		if n := s.r.standing.news(); n > 0 {
			s.r.log.Error("the broker removed messages before this subscription had them, and they are never handled here; have it keep messages for longer than a subscription may be behind", "broker", s.r.stream.Broker, "messages", n)
		}
	}
}
