package whole

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/waybill-go/waybill/broker"
)

// transactions are those of one transactional id.
type transactions struct {
	epoch int
	mark  broker.Mark
}

var _ broker.Transactional = bus{}

// ExactlyOnce implements [broker.Transactional].
func (b bus) ExactlyOnce() bool { return b.w.plan.exact }

// Transact fences who has an id open, and reads its mark in the same moment.
func (b bus) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	t := &transactor{b: b, of: b.w.transactions(id)}
	var mark broker.Mark
	read := func() { mark = t.of.mark }
	if os.Getenv(withoutVar) == "MARKERFIRST" {
		if err := b.w.ask(ctx, b.p, &request{kind: "mark", what: id, do: read}); err != nil {
			return nil, mark, errAway
		}
		read = func() {}
	}
	err := b.w.ask(ctx, b.p, &request{kind: "open", what: id, do: func() {
		read()
		t.of.epoch++
		t.epoch = t.of.epoch
	}})
	if err != nil {
		return nil, broker.Mark{}, errAway
	}
	return t, mark, nil
}

func (w *world) transactions(id string) *transactions {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ids[id] == nil {
		w.ids[id] = &transactions{}
	}
	return w.ids[id]
}

// transactor is a process's, of an id that it has opened.
type transactor struct {
	b      bus
	of     *transactions
	epoch  int
	failed bool
}

var errFenced = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("whole: another has opened the id"))

// Publish stores all messages and the mark. Its commit may happen late, unless the id is
// opened before.
func (t *transactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) (err error) {
	if t.failed {
		return errFenced
	}
	defer func() { t.failed = err != nil }()
	w, fenced := t.b.w, false
	asked := w.ask(ctx, t.b.p, &request{kind: "transact", what: messages[0].ID, changes: true, do: func() {
		if fenced = t.of.epoch != t.epoch || mark.N <= t.of.mark.N; fenced {
			return
		}
		for _, m := range messages {
			w.store(m)
		}
		t.of.mark = mark
	}})
	switch {
	case errors.Is(asked, errRefused):
		return errAway
	case asked != nil:
		return fmt.Errorf("%w: %w", broker.ErrUndecided, asked)
	case fenced:
		return errFenced
	}
	return nil
}

// Close implements [broker.Transactor].
func (t *transactor) Close() {}
