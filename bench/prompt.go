package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

// prompt is a relay by hand that each commit wakes: it reads what is not finished
// and not on its way yet, produces it one by one, and marks what has arrived. It
// claims nothing and knows no failures. Keys come once here, so that it needs no
// order.
type prompt struct {
	dsn, topic string
	tables     *tables
	client     *kgo.Client
	watch      *stopwatch

	woken, landed chan struct{}
	mu            sync.Mutex
	out           map[int64]bool // until a read can't see them any more
	arrived       relayed
	marked        []int64
	err           error
}

// wake says that something was committed.
func (p *prompt) wake() { tell(p.woken) }

func tell(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// run works until ctx is done.
func (p *prompt) run(ctx context.Context) error {
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, each := range []struct {
		on chan struct{}
		do func(context.Context, *pgx.Conn) error
	}{{p.woken, p.send}, {p.landed, p.mark}} {
		c, err := p.tables.connect(ctx, p.dsn)
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		both.Go(func() {
			for errs[i] == nil {
				select {
				case <-each.on:
					errs[i] = each.do(ctx, c)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	both.Wait()
	if ctx.Err() != nil {
		errs = nil
	}
	return errors.Join(append(errs, p.err)...)
}

func (p *prompt) send(ctx context.Context, c *pgx.Conn) error {
	p.mu.Lock()
	for _, seq := range p.marked {
		delete(p.out, seq)
	}
	p.marked = nil
	p.mu.Unlock()
	found, err := c.Query(ctx, p.tables.all, p.tables.lane)
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		part, seq, record, err := recordOf(found, p.topic)
		if err != nil {
			return err
		}
		p.mu.Lock()
		known := p.out[seq]
		p.out[seq] = true
		p.mu.Unlock()
		if !known {
			p.client.Produce(ctx, record, func(r *kgo.Record, err error) { p.landing(part, seq, string(r.Key), err) })
		}
	}
	return found.Err()
}

func (p *prompt) landing(part int16, seq int64, key string, err error) {
	if err == nil {
		p.watch.answer(time.Now(), broker.Message{Key: key})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
	p.arrived.parts, p.arrived.seqs = append(p.arrived.parts, part), append(p.arrived.seqs, seq)
	tell(p.landed)
}

func (p *prompt) mark(ctx context.Context, c *pgx.Conn) error {
	p.mu.Lock()
	parts, seqs := p.arrived.parts, p.arrived.seqs
	p.arrived.parts, p.arrived.seqs = nil, nil
	p.mu.Unlock()
	if len(seqs) == 0 {
		return nil
	}
	_, err := c.Exec(ctx, p.tables.settle, parts, seqs)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marked = append(p.marked, seqs...)
	return err
}
