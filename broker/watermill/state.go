package watermill

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill/broker"
)

const (
	askEvery  = 3 * time.Second
	answersIn = 3 * time.Second
)

var _ broker.Stateful = (*watched)(nil)

// watched is a consumer whose server is asked whether it is there.
type watched struct {
	*consumer

	mu    sync.Mutex
	state broker.State
}

func watch(c *consumer) *watched {
	w := &watched{consumer: c, state: broker.State{Joined: true, Since: time.Now()}}
	go func() {
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for {
			w.note(w.ask())
			select {
			case <-tick.C:
			case <-c.closing:
				w.note(ErrClosed)
				return
			}
		}
	}()
	return w
}

// ask also ends with the consumer.
func (w *watched) ask() error {
	ctx, cancel := context.WithTimeoutCause(w.ctx, answersIn, fmt.Errorf("watermill: the server didn't answer within %v", answersIn))
	defer cancel()
	return w.broker.conf.Alive(ctx)
}

func (w *watched) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if joined := err == nil; joined != w.state.Joined {
		w.state.Joined, w.state.Since = joined, time.Now()
	}
	w.state.LastError = err
}

// State implements [broker.Stateful]. Joined is that the server answers: Watermill
// doesn't say more.
func (w *watched) State() broker.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closing:
		if w.state.Joined {
			w.state.Joined, w.state.Since, w.state.LastError = false, time.Now(), ErrClosed
		}
	default:
	}
	return w.state
}
