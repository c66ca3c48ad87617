package projection

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/writer"
)

// worker feeds a shard of a build as long as it has the lease.
//
// What it knows of the position is what it has committed, or read under its fence. It
// reads the next page while it writes one; an error throws away what was read ahead.
type worker struct {
	r       *Runner
	program *program
	lease   lease
	shards  int
	woken   chan struct{}
	stop    chan struct{} // Closed: no more batches.
	ending  bool          // It is closed; the runner's lock protects it.
	log     *slog.Logger
	reader  *historydb.Reader

	mu    sync.Mutex
	shard shard // What is known of it; of events only those since the lease began.
	rate  rate

	told   bool // The log has a line of the event that fails.
	named  bool // The log has a line of the transactions that it waits for.
	recent recent
	single int // So many events are handled one by one, to find the one that fails.
}

// page is what is read of the history at once.
type page struct {
	events []decoded
	at     []int64 // Their positions.
	upTo   int64
	more   bool
	atHead bool // There was nothing behind it when it was looked for.
	err    error
	fault  *HandlerError // The event behind the last one, which can't be decoded.
	// writers are open transactions: nothing behind upTo can be read before they end.
	writers []string
}

var (
	feedReads  = dberr.Task{What: "read the history for projections"}
	feedWrites = dberr.Task{What: "write projections"}
)

// run feeds until it is stopped or has lost the lease.
func (w *worker) run(ctx context.Context) {
	hard := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() { w.renew(ctx, cancel, done) })
	w.open()
	ended := w.feed(ctx)
	close(done)
	renewing.Wait()
	lost := errors.Join(context.Cause(ctx), ended)
	switch {
	case errors.Is(lost, errUndone): // The lease is still this one's: it can be given back.
		w.log.Warn("the database doesn't have the position any more that was committed: it was restored, or a standby took over that had not got it; the projection continues from where the database is", "position", w.shard.position)
		w.shard = shard{position: beginning}
		defer poke(w.r.changed)
	case errors.Is(lost, errFenced):
		w.log.Info("another process feeds the projection now, or an operator has been here")
		poke(w.r.changed)
		return
	}
	release, stop := context.WithTimeout(writer.Urgent(hard), w.r.wait.renew)
	defer stop()
	// What can't be given back runs out.
	_ = w.lease.giveBack(release, w.r.provider, w.now(), errors.Is(lost, errNewer))
}

func (w *worker) open() {
	w.reader = historydb.NewReader(w.r.provider.Reader(), historydb.Filter{Names: w.program.names})
}

func (w *worker) now() shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shard
}

// feed handles page after page.
func (w *worker) feed(ctx context.Context) error {
	var ahead chan page
	drop := func() {
		if ahead != nil {
			<-ahead // it uses the reader
			ahead = nil
		}
	}
	defer drop()
	idle := time.Duration(0)
	for {
		select {
		case <-w.stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
		var p page
		if ahead != nil {
			p, ahead = <-ahead, nil
		} else {
			p = w.read(ctx, w.shard.position)
		}
		w.r.outage.Note(ctx, feedReads, p.err)
		if p.err != nil {
			w.pause(ctx, w.r.wait.retry)
			continue
		}
		if p.more && p.fault == nil {
			ahead = w.readAhead(ctx, p.upTo)
		}
		moved := p.upTo > w.shard.position
		err := w.apply(ctx, p)
		if _, failed := errors.AsType[*HandlerError](err); !failed {
			w.r.outage.Note(ctx, feedWrites, err)
		}
		switch {
		case errors.Is(err, errFenced):
			return err
		case err != nil:
			drop()
			w.recent = recent{}
			if err := w.failed(ctx, err); err != nil {
				return err
			}
			idle = 0
			continue
		}
		w.held(ctx, p.writers)
		if p.more {
			continue
		}
		if moved && len(p.events) > 0 {
			idle = 0
		}
		idle = w.rest(ctx, idle)
	}
}

func (w *worker) readAhead(ctx context.Context, from int64) chan page {
	ahead := make(chan page, 1)
	go func() { ahead <- w.read(ctx, from) }()
	return ahead
}

// rest is when it is up to date. Who commits in this process wakes it; what others commit,
// and what was held back by an open transaction, is found by looking, less and less often.
// It takes how long it has rested before, and returns it.
func (w *worker) rest(ctx context.Context, before time.Duration) time.Duration {
	idle := min(max(2*before, 5*time.Millisecond), w.r.wait.poll)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.woken:
		return 0
	case <-w.stop:
	case <-ctx.Done():
	}
	return idle
}

// held notes whom it waits for; the next renewal tells the database, and the log is told
// once, when it takes long.
func (w *worker) held(ctx context.Context, writers []string) {
	w.mu.Lock()
	s := &w.shard
	if len(writers) == 0 || len(s.heldBy) == 0 {
		s.heldSince = time.Now()
	}
	s.heldBy = writers
	since := s.heldSince
	w.mu.Unlock()
	switch {
	case len(writers) == 0:
		if w.named {
			w.named = false
			w.log.Info("projection goes on: the transactions that it has waited for have ended")
		}
	case !w.named && time.Since(since) >= w.r.wait.held:
		look, cancel := context.WithTimeout(ctx, w.r.wait.lease)
		defer cancel()
		open, err := historydb.Writers(look, w.r.provider.Reader(), writers)
		if err != nil || len(open) == 0 { // The next look will say; or they have just ended.
			return
		}
		w.named = true
		h := heldBy(since, open)
		w.log.Warn("projection waits: a transaction that has written events is open, and what was committed behind it can't be read before it ends",
			"position", w.shard.position, "waits", h.String(), "remedy", h.By[0].Remedy())
	}
}

// pause waits, unless it is to end.
func (w *worker) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.stop:
	case <-ctx.Done():
	}
}

// read reads a page, and decodes what is for this shard.
func (w *worker) read(ctx context.Context, after int64) (p page) {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	from := after
	if from == beginning {
		from = 0
	}
	found, err := w.reader.Page(ctx, from, 0, w.program.Batch*w.shards)
	p.err, p.upTo, p.more, p.writers = err, max(found.UpTo, after), found.More, found.Writers
	p.atHead = !found.More && !found.Unknown
	if err != nil {
		return p
	}
	if found.UpTo == 0 && len(found.Events) == 0 { // There is nothing yet.
		p.upTo = after
	}
	for i := range found.Events {
		e := &found.Events[i]
		if w.shards > 1 && shardOf(e.Category, e.AggregateID, w.shards) != w.shard.shard {
			continue
		}
		event, err := w.program.decode(e)
		if err != nil {
			p.fault = &HandlerError{Projection: w.program.Name, Position: e.Position, Type: e.Type, ID: e.ID, Err: err}
			p.more, p.atHead = true, false
			return p
		}
		p.events, p.at = append(p.events, event), append(p.at, e.Position)
	}
	return p
}

// decode makes of a row what a handler is given. A panic of an upcaster is an error of its event.
func (g *program) decode(e *historydb.Event) (_ decoded, err error) {
	defer recovered(&err)
	t, err := g.domain.EventNamed(e.Type)
	if err != nil {
		return decoded{}, err
	}
	event, err := g.domain.Decode(e.Type, e.Data)
	return decoded{event: event, handler: g.byType[t], meta: e.Metadata}, err
}

// shardOf divides aggregates.
func shardOf(category, id string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(category + "-" + id))
	return int(h.Sum32() % uint32(n)) //nolint:gosec // a few
}

// renew keeps the lease, and counts how fast it goes. When another process has the lease,
// what is in hand is ended.
func (w *worker) renew(ctx context.Context, lost context.CancelCauseFunc, done <-chan struct{}) {
	ctx = writer.Urgent(ctx)
	tick := time.NewTicker(w.r.wait.renew)
	defer tick.Stop()
	w.measure(ctx) // so that the first renewal can tell
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.measure(ctx)
		step, cancel := context.WithTimeout(ctx, w.r.wait.lease)
		err := w.lease.renew(step, w.r.provider, w.r.wait.lease, w.now())
		cancel()
		if errors.Is(err, errFenced) {
			lost(err)
			return
		}
	}
}
