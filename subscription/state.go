package subscription

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/broker"
)

// glance is how often a consumer is asked how it fares.
const glance = 500 * time.Millisecond

// watch notes how the consumer fares, until ctx is done: to a runner that gets no
// messages, one that can't have any looks like one for which there are none.
func (s *session) watch(ctx context.Context) {
	consumer, ok := s.consumer.(broker.Stateful)
	if !ok {
		return
	}
	look := time.NewTicker(glance)
	defer look.Stop()
	for down := false; ; {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		switch state := consumer.State(); {
		case !state.Joined && state.LastError != nil:
			s.r.brokerDown(state.LastError)
			down = true
		case state.Joined && down:
			s.r.brokerUp()
			down = false
		}
	}
}
