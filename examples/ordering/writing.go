package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

const (
	// attemptTimeout bounds a unit of work, and with it the end after a signal.
	attemptTimeout = 10 * time.Second
	firstWait      = 100 * time.Millisecond
	lastWait       = 2 * time.Second
	// patience is how long a database may be away.
	patience = 5 * time.Minute
)

// writing places orders, several at the same time, and prints what was
// committed.
type writing struct {
	units          *uow.Manager
	orders         *repository.Repository[*ordering.Order]
	writers        int
	stdout, stderr io.Writer

	print                               sync.Mutex
	placed, cancelled, existing, failed atomic.Int64
	away                                atomic.Bool
}

func (w *writing) String() string {
	return fmt.Sprintf("placed %d, cancelled %d, existing %d, failed %d", w.placed.Load(), w.cancelled.Load(), w.existing.Load(), w.failed.Load())
}

// committed is what is told of a unit of work.
type committed struct {
	OrderID    string   `json:"order_id"`
	Version    int64    `json:"version"`
	MessageIDs []string `json:"message_ids"`
}

// errStopped is a unit that was given up because ctx was done.
var errStopped = errors.New("stopped")

// run does jobs until they or ctx end; units in progress are finished. A
// customer always has the same writer, so that orders are placed in their order.
func (w *writing) run(ctx context.Context, jobs iter.Seq[job]) error {
	group, running := errgroup.WithContext(ctx)
	queues := make([]chan job, w.writers)
	for i := range queues {
		queues[i] = make(chan job, 16)
		group.Go(func() error {
			for j := range queues[i] {
				select {
				case <-running.Done():
					return nil
				default:
				}
				if err := w.do(running, j); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for j := range jobs {
		select {
		case queues[writerOf(j.customer, w.writers)] <- j:
			continue
		case <-running.Done():
		}
		break
	}
	for _, q := range queues {
		close(q)
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if n := w.failed.Load(); n > 0 && ctx.Err() == nil {
		return fmt.Errorf("orders that could not be placed: %d", n)
	}
	return nil
}

// do places one order, and changes it if the job says so: each in a unit of work
// of its own.
func (w *writing) do(ctx context.Context, j job) error {
	o, err := j.order()
	if err == nil {
		err = w.commit(ctx, o)
	}
	if conflict, ok := errors.AsType[*uow.ConflictError](err); ok && conflict.Expected == 0 {
		w.existing.Add(1)
		return nil
	}
	if err != nil {
		return w.failure(o, err)
	}
	w.placed.Add(1)
	if j.note && ctx.Err() == nil {
		if _, err := w.change(ctx, o.ID(), func(o *ordering.Order) error { return o.AddNote("a gift: no invoice") }); err != nil {
			return w.failure(o, err)
		}
	}
	if j.cancel && ctx.Err() == nil {
		done, err := w.change(ctx, o.ID(), func(o *ordering.Order) error { return o.Cancel("changed my mind") })
		if err != nil {
			return w.failure(o, err)
		}
		if done {
			w.cancelled.Add(1)
		}
	}
	return nil
}

// failure counts an order that can't be placed or changed. Only what would
// concern the next one as well is an error.
func (w *writing) failure(o *ordering.Order, err error) error {
	switch {
	case errors.Is(err, errStopped):
		return nil
	case o == nil || !final(err):
		return err
	}
	w.failed.Add(1)
	fmt.Fprintf(w.stderr, "order %s: %v\n", o.ID(), err)
	return nil
}

// change loads an order and commits what change does to it. An engine works on the
// order as well: if it was faster, the order is loaded again, and if that has released
// or cancelled it, there is nothing to be done.
func (w *writing) change(ctx context.Context, id string, change func(*ordering.Order) error) (done bool, err error) {
	for {
		var o *ordering.Order
		err := w.patiently(ctx, func(ctx context.Context) (err error) {
			o, err = w.orders.Get(ctx, id)
			return err
		})
		if err != nil {
			return false, err
		}
		if err := change(o); errors.Is(err, ordering.ErrReleased) || errors.Is(err, ordering.ErrCancelled) {
			fmt.Fprintf(w.stderr, "order %s: too late: %v\n", id, err)
			return false, nil
		} else if err != nil {
			return false, err
		}
		err = w.commit(ctx, o)
		if _, overtaken := errors.AsType[*uow.ConflictError](err); !overtaken {
			return err == nil, err
		}
	}
}

// commit saves an order and prints what was committed. An order that failed to
// be saved keeps its events with their ids, so it can be saved again.
func (w *writing) commit(ctx context.Context, o *ordering.Order) error {
	done := committed{OrderID: o.ID(), Version: o.Version() + 1}
	for _, e := range domain.PendingEvents(o) {
		done.MessageIDs = append(done.MessageIDs, e.ID)
	}
	var lost *uow.CommitUnknownError
	err := w.patiently(ctx, func(ctx context.Context) error {
		if lost != nil {
			outcome, err := lost.Resolve(ctx)
			if err != nil || outcome == uow.Committed {
				return err
			}
		}
		err := w.orders.Save(ctx, o)
		lost, _ = errors.AsType[*uow.CommitUnknownError](err)
		return err
	})
	if err != nil {
		return err
	}
	w.print.Lock()
	defer w.print.Unlock()
	return json.NewEncoder(w.stdout).Encode(done)
}

// patiently does something until it succeeds or can't. While ctx is done it is
// finished and not tried again.
func (w *writing) patiently(ctx context.Context, do func(context.Context) error) error {
	begin := time.Now()
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
		err := do(attempt)
		cancel()
		answered := err == nil || final(err)
		if answered && w.away.CompareAndSwap(true, false) {
			fmt.Fprintln(w.stderr, "the database answers again")
		}
		switch {
		case answered, time.Since(begin) > patience:
			return err
		case ctx.Err() != nil:
			return errStopped
		}
		if w.away.CompareAndSwap(false, true) {
			fmt.Fprintf(w.stderr, "the database fails, and is tried again: %v\n", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errStopped
		}
	}
}

// final says whether trying again is of no use.
func final(err error) bool {
	var (
		conflict *uow.ConflictError
		invalid  *uow.InvalidError
		large    *outbox.TooLargeError
		missing  *repository.NotFoundError
	)
	return errors.As(err, &conflict) || errors.As(err, &invalid) || errors.As(err, &large) || errors.As(err, &missing)
}
