package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/broker"
)

var _ broker.Transactional = (*Broker)(nil)

// errFenced is what a transactor gets whose id somebody has opened after it.
var errFenced = broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("memory: the transactional id was opened by another"))

// transactions are those of one id.
type transactions struct {
	epoch int
	mark  broker.Mark
}

// ExactlyOnce implements [broker.Transactional].
func (b *Broker) ExactlyOnce() bool { return b.cfg.ExactlyOnce }

// Transact implements [broker.Transactional].
func (b *Broker) Transact(ctx context.Context, id string) (broker.Transactor, broker.Mark, error) {
	if err := ctx.Err(); err != nil {
		return nil, broker.Mark{}, broker.Classify(broker.Unavailable, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return nil, broker.Mark{}, err
	}
	of := b.transactions[id]
	if of == nil {
		of = &transactions{}
		b.transactions[id] = of
	}
	of.epoch++
	return &transactor{Broker: b, of: of, epoch: of.epoch}, of.mark, nil
}

// Marks are the marks of the ids that begin with prefix.
func (b *Broker) Marks(prefix string) map[string]broker.Mark {
	b.mu.Lock()
	defer b.mu.Unlock()
	marks := map[string]broker.Mark{}
	for id, of := range b.transactions {
		if strings.HasPrefix(id, prefix) {
			marks[id] = of.mark
		}
	}
	return marks
}

type transactor struct {
	*Broker
	of     *transactions
	epoch  int
	failed bool
}

// Publish implements [broker.Transactor].
func (t *transactor) Publish(ctx context.Context, mark broker.Mark, messages []broker.Message) (err error) {
	if t.failed {
		return broker.Scoped(broker.Unavailable, broker.ScopeRow, errors.New("memory: the transactor has failed before: open its id again"))
	}
	defer func() { t.failed = err != nil }()
	if err := t.admit(ctx, len(messages)); err != nil {
		return err
	}
	failed := t.refused(messages)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return err
	}
	if t.of.epoch != t.epoch {
		return errFenced
	}
	if err := t.faults.beforeStore(); err != nil {
		return err
	}
	if len(failed) > 0 {
		for i := range messages {
			if failed[i] == nil {
				failed[i] = broker.ErrTakenBack
			}
		}
		return &broker.PublishError{Failed: failed}
	}
	if mark.N <= t.of.mark.N {
		return broker.Scoped(broker.Permanent, broker.ScopeBroker, fmt.Errorf("memory: the mark %d is not above %d, the last one", mark.N, t.of.mark.N))
	}
	for _, m := range messages {
		t.topic(m.Topic).store(m, t.cfg.Dedup)
	}
	t.of.mark = mark
	t.notify()
	if err := t.faults.afterStore(); err != nil {
		return fmt.Errorf("%w: %w", broker.ErrUndecided, err)
	}
	return nil
}

// Close implements [broker.Transactor].
func (t *transactor) Close() {}
