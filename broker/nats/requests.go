package nats

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// requests sends many messages at once and collects their replies. The client's
// own asynchronous publishing isn't used because it sends again, from a timer,
// what found no stream: behind the back of a caller who was told something else.
type requests struct {
	nc     *nats.Conn
	prefix string // Of the subjects for replies.

	mu      sync.Mutex
	next    uint64
	calls   map[uint64]*call
	watches map[*watch]struct{}
}

// call is one round of requests, numbered from 0.
type call struct {
	requests *requests
	id       uint64
	replies  chan reply
	denied   chan string   // A subject that may not be published to.
	broken   chan struct{} // Closed when the connection broke: no reply will come.
	breaks   sync.Once
}

type reply struct {
	number int
	*nats.Msg
}

func newRequests() *requests {
	return &requests{calls: map[uint64]*call{}, watches: map[*watch]struct{}{}}
}

// listen receives the replies of a connection.
func (r *requests) listen(nc *nats.Conn) error {
	r.nc, r.prefix = nc, nc.NewInbox()+"."
	sub, err := nc.Subscribe(r.prefix+"*.*", r.deliver)
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(-1, -1)
}

func (r *requests) deliver(m *nats.Msg) {
	id, number, _ := strings.Cut(strings.TrimPrefix(m.Subject, r.prefix), ".")
	callID, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return
	}
	r.mu.Lock()
	c := r.calls[callID]
	r.mu.Unlock()
	if c == nil {
		return
	}
	select {
	case c.replies <- reply{n, m}:
	default: // More replies than requests: somebody else answers, too.
	}
}

// begin starts a call of at most size requests. It has to be ended.
func (r *requests) begin(size int) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	c := &call{requests: r, id: r.next, replies: make(chan reply, size), denied: make(chan string, size), broken: make(chan struct{})}
	r.calls[c.id] = c
	return c
}

func (c *call) end() {
	c.requests.mu.Lock()
	defer c.requests.mu.Unlock()
	delete(c.requests.calls, c.id)
}

// send sends a request. An error of package nats says that it wasn't sent.
func (c *call) send(number int, m *nats.Msg) error {
	m.Reply = c.requests.prefix + strconv.FormatUint(c.id, 10) + "." + strconv.Itoa(number)
	return c.requests.nc.PublishMsg(m)
}

// abort ends the waiting of every call. A call that began on the next connection
// may be among them, since the client reports from a queue: its outcome is then
// unknown for nothing, which is safe.
func (r *requests) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		c.breaks.Do(func() { close(c.broken) })
	}
}

var deniedSubject = regexp.MustCompile(`(?i)(?:publish|subscription) to "([^"]+)"`)

// deny tells the calls and watches that the server refuses a subject. It answers
// so on the connection, never to the request.
func (r *requests) deny(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	match := deniedSubject.FindStringSubmatch(err.Error())
	if match == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		select {
		case c.denied <- match[1]:
		default:
		}
	}
	for w := range r.watches {
		if slices.ContainsFunc(w.parts, func(part string) bool { return strings.Contains(match[1], part) }) {
			w.cancel(err)
		}
	}
}

// watch waits for the refusal of a subject that has one of parts in it.
type watch struct {
	parts  []string
	cancel context.CancelCauseFunc
}

// watch is ctx, done also when the server refuses a subject that has one of parts
// in it. [cause] then tells why.
func (b *Broker) watch(ctx context.Context, parts ...string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{parts, cancel}
	b.requests.mu.Lock()
	defer b.requests.mu.Unlock()
	b.requests.watches[w] = struct{}{}
	return ctx, func() {
		cancel(nil)
		b.requests.mu.Lock()
		defer b.requests.mu.Unlock()
		delete(b.requests.watches, w)
	}
}
