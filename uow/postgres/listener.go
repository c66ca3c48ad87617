package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
)

// maxUnheard is how many notifications wait for a watcher that is busy. If there are
// more, it hears that anything may have been committed.
const maxUnheard = 100

// listener is one connection for all that watch a server, there while somebody does.
type listener struct {
	cfg *pgx.ConnConfig
	mu  sync.Mutex
	now *listening // nil: nobody watches
}

// listening is a listener's connection. If it breaks all watchers end, and the next one
// begins another.
type listening struct {
	of        *listener
	cancel    context.CancelFunc
	done      chan struct{}
	watchers  map[*watcher]bool  // under of.mu
	interrupt context.CancelFunc // of the wait for notifications; under of.mu
}

// watcher is somebody who watches a channel.
type watcher struct {
	channel string
	told    bool // that it can hear; under listener.mu
	came    chan struct{}
	failed  chan error

	mu      sync.Mutex
	unheard [][]outbox.Poke
}

// watch calls hear, on the caller's goroutine, until ctx is done or nothing can be
// heard.
func (l *listener) watch(ctx context.Context, channel string, hear func([]outbox.Poke)) error {
	w := &watcher{channel: channel, came: make(chan struct{}, 1), failed: make(chan error, 1)}
	in := l.join(ctx, w)
	defer in.leave(w)
	for {
		select {
		case <-w.came:
			for _, pokes := range w.take() {
				hear(pokes)
			}
		case err := <-w.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("doesn't listen any more: %w", context.Cause(ctx))
		}
	}
}

// join outlives ctx: others use the connection, too.
func (l *listener) join(ctx context.Context, w *watcher) *listening {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.now
	if in == nil {
		in = &listening{of: l, done: make(chan struct{}), watchers: map[*watcher]bool{}, interrupt: func() {}}
		ctx, in.cancel = context.WithCancel(context.WithoutCancel(ctx))
		l.now = in
		go in.run(ctx)
	}
	in.watchers[w] = true
	in.interrupt()
	return in
}

// leave ends the connection with the last watcher.
func (in *listening) leave(w *watcher) {
	in.of.mu.Lock()
	delete(in.watchers, w)
	in.interrupt()
	last := len(in.watchers) == 0
	if last && in.of.now == in {
		in.of.now = nil
	}
	in.of.mu.Unlock()
	if last {
		in.cancel()
		<-in.done
	}
}

func (in *listening) run(ctx context.Context) {
	defer close(in.done)
	defer in.cancel()
	err := in.listen(ctx)
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	if in.of.now == in {
		in.of.now = nil
	}
	for w := range in.watchers {
		if w.told {
			w.failed <- fmt.Errorf("doesn't listen any more: %w", err)
		} else {
			w.failed <- fmt.Errorf("can't listen: %w", err)
		}
	}
}

func (in *listening) listen(ctx context.Context) error {
	conn, err := in.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = hangUp(ctx, conn) }()
	listens := map[string]bool{}
	for {
		wait, fresh, commands := in.turn(ctx, listens)
		if commands != "" {
			if _, err := conn.Exec(ctx, commands); err != nil {
				return err
			}
		}
		in.tell(fresh)
		// A wait that is interrupted leaves the connection as it is.
		n, err := conn.WaitForNotification(wait)
		switch {
		case err == nil:
			in.hand(n.Channel, pokesOf(n.Payload))
		case ctx.Err() != nil:
			return ctx.Err()
		case wait.Err() == nil:
			return err
		}
	}
}

func (in *listening) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, in.of.cfg.Copy())
	if err != nil {
		return nil, explain(in.of.cfg, err)
	}
	var server uint32
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&server)
	// A pooler gives its clients numbers of its own.
	if err == nil && server != conn.PgConn().PID() {
		err = errPooler
	}
	if err == nil {
		// It is idle for as long as nobody commits: a timeout that is meant for forgotten sessions
		// would end it again and again. PostgreSQL 13 has none. To read pg_settings may need temporary
		// files, which the server may forbid.
		_, err = conn.Exec(ctx, "SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) IS NOT NULL")
	}
	if err != nil {
		return hangUp(ctx, conn), err
	}
	return conn, nil
}

// turn says which watchers are new, and what makes the connection listen to the
// channels of those that are there now. wait ends when they have changed.
func (in *listening) turn(ctx context.Context, listens map[string]bool) (wait context.Context, fresh []*watcher, commands string) {
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	in.interrupt() // the last wait is over
	wait, in.interrupt = context.WithCancel(ctx)
	var b strings.Builder
	wanted := map[string]bool{}
	for w := range in.watchers {
		if !w.told {
			fresh = append(fresh, w)
		}
		if !listens[w.channel] {
			listens[w.channel] = true
			b.WriteString("LISTEN " + pgx.Identifier{w.channel}.Sanitize() + ";")
		}
		wanted[w.channel] = true
	}
	for channel := range listens {
		if !wanted[channel] {
			delete(listens, channel)
			b.WriteString("UNLISTEN " + pgx.Identifier{channel}.Sanitize() + ";")
		}
	}
	return wait, fresh, b.String()
}

// tell lets new watchers look for what was committed before they could hear.
func (in *listening) tell(fresh []*watcher) {
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	for _, w := range fresh {
		w.told = true
		w.put(nil)
	}
}

func (in *listening) hand(channel string, pokes []outbox.Poke) {
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	for w := range in.watchers {
		if w.channel == channel && w.told {
			w.put(pokes)
		}
	}
}

func (w *watcher) put(pokes []outbox.Poke) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.unheard) >= maxUnheard {
		w.unheard, pokes = nil, nil
	}
	w.unheard = append(w.unheard, pokes)
	select {
	case w.came <- struct{}{}:
	default:
	}
}

func (w *watcher) take() [][]outbox.Poke {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.unheard
	w.unheard = nil
	return all
}

// errPooler says why nothing can be heard.
var errPooler = errors.New("a pooler stands between this process and PostgreSQL, and notifications don't come through it: let listen_dsn lead to the server itself")
