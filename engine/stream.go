package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	streamEvery = time.Second
	// streamClients are as many as may listen at the same time. Each is a connection
	// that stays.
	streamClients = 64
	// heartbeat is how long a connection is silent at most, so that neither proxies nor
	// clients take it for dead.
	heartbeat = 10 * time.Second
	// eventTimeout is how long a client may take for one event.
	eventTimeout = 5 * time.Second
)

// state is one event of /api/stream.
type state struct {
	At            time.Time           `json:"at"`
	Health        diagnosis           `json:"health"`
	Outbox        outboxReport        `json:"outbox"`        // as /api/outbox
	Subscriptions subscriptionsReport `json:"subscriptions"` // as /api/subscriptions
}

// state is how everything is now, for a second's waiting at most.
func (e *Engine) state(ctx context.Context) state {
	var s state
	var all sync.WaitGroup
	all.Go(func() { s.Health = e.diagnose(ctx) })
	all.Go(func() { s.Outbox = e.outboxState(ctx, recent) })
	all.Go(func() { s.Subscriptions = e.subscriptionsState(ctx, recent) })
	all.Wait()
	s.At = time.Now().UTC()
	return s
}

// feed looks once a second for all who listen, and not at all if nobody does.
type feed struct {
	look  func(ctx context.Context) (full, plain any)
	start func(func(ctx context.Context)) bool

	mu        sync.Mutex
	listeners map[*listener]struct{}
	looking   bool
}

// listener gets what is new. One that is slow misses what it had no time for.
type listener struct {
	content bool          // it gets what is full, others what is plain
	events  chan []byte   // holds the newest
	ended   chan struct{} // closed: there will be no more
}

var errTooMany = errors.New("too many clients listen to this engine; try again later, or ask /api/outbox and /api/health")

func newFeed(look func(ctx context.Context) (full, plain any), l *lookouts) *feed {
	return &feed{look: look, start: l.start, listeners: map[*listener]struct{}{}}
}

func (f *feed) join(content bool) (*listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.listeners) >= streamClients {
		return nil, errTooMany
	}
	if !f.looking && !f.start(f.run) {
		return nil, errors.New("the engine has stopped")
	}
	f.looking = true
	l := &listener{content: content, events: make(chan []byte, 1), ended: make(chan struct{})}
	f.listeners[l] = struct{}{}
	return l, nil
}

func (f *feed) leave(l *listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.listeners, l)
}

// run looks until nobody listens or the engine ends.
func (f *feed) run(ctx context.Context) {
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	for !f.deserted() {
		full, plain := f.look(ctx)
		f.tell(full, true)
		f.tell(plain, false)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			f.end()
			return
		}
	}
}

// deserted says whether nobody listens; then whoever comes next starts it anew.
func (f *feed) deserted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looking = len(f.listeners) > 0
	return !f.looking
}

// tell sends what is new to the listeners of one kind.
func (f *feed) tell(what any, content bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var event []byte // the same for all
	for l := range f.listeners {
		if l.content != content {
			continue
		}
		if event == nil {
			var err error
			if event, err = json.Marshal(what); err != nil {
				return
			}
		}
		select {
		case <-l.events:
		default:
		}
		l.events <- event
	}
}

func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.listeners {
		close(l.ended)
	}
	clear(f.listeners)
	f.looking = false
}

// eventWriter writes events to a client, each within [eventTimeout].
type eventWriter struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	ended <-chan struct{}
	mu    sync.Mutex // of the deadline
	leave chan struct{}
	cut   sync.WaitGroup
}

// newEventWriter returns one that writes nothing more once ended is closed: a client that
// reads nothing doesn't keep the server from its end. [eventWriter.close] ends its goroutine.
func newEventWriter(w http.ResponseWriter, ended <-chan struct{}) *eventWriter {
	o := &eventWriter{w: w, c: http.NewResponseController(w), ended: ended, leave: make(chan struct{})}
	// The server's limits are for requests that end. Not every writer has deadlines;
	// its server then has to see to that.
	_ = o.c.SetReadDeadline(time.Time{})
	o.cut.Go(func() {
		select {
		case <-o.ended:
			o.limit(0)
		case <-o.leave:
		}
	})
	return o
}

func (o *eventWriter) limit(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.ended:
		d = 0
	default:
	}
	_ = o.c.SetWriteDeadline(time.Now().Add(d))
}

func (o *eventWriter) send(text ...[]byte) bool {
	o.limit(eventTimeout)
	for _, t := range text {
		if _, err := o.w.Write(t); err != nil {
			return false
		}
	}
	return o.c.Flush() == nil
}

func (o *eventWriter) close() {
	close(o.leave)
	o.cut.Wait()
}

// stream sends the state of the engine each second, as server-sent events, until
// the client leaves, its token is no longer good, or the engine stops.
func (e *Engine) stream(w http.ResponseWriter, r *http.Request) {
	if err := paramsOf(r).check(); err != nil {
		wrong := e.tell(r, err)
		refuse(w, wrong.status, wrong.text)
		return
	}
	l, err := e.feed.join(visitorOf(r).content())
	if err != nil {
		w.Header().Set("Retry-After", "5")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer e.feed.leave(l)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy is not to wait for more
	secure(h)
	if r.Method == http.MethodHead {
		return
	}
	out := newEventWriter(w, l.ended)
	defer out.close()

	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	for ok := out.send([]byte("retry: 2000\n\n")); ok; {
		select {
		case event := <-l.events:
			ok = e.stillIn(r) && out.send([]byte("event: state\ndata: "), event, []byte("\n\n"))
		case <-beat.C:
			ok = out.send([]byte(": still there\n\n"))
		case <-l.ended:
			return
		case <-r.Context().Done():
			return
		}
		beat.Reset(heartbeat)
	}
}
