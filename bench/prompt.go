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

const promptRead = `SELECT seq, message_id::text, partition_key, message_type, content_type, payload FROM outbox
	WHERE target_broker = $1 AND finished_at IS NULL ORDER BY seq`

// prompt is a relay by hand that each commit wakes: it reads what is not finished
// and not on its way yet, produces it one by one, and marks what has arrived. It
// claims nothing and knows no failures. Keys come once here, so that it needs no
// order.
type prompt struct {
	dsn, topic string
	client     *kgo.Client
	watch      *stopwatch

	woken, landed chan struct{}
	mu            sync.Mutex
	out           map[int64]bool // until a read can't see them any more
	arrived       []int64
	marked        []int64
	err           error
}

// wake says that something was committed.
func (p *prompt) wake() { ring(p.woken) }

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// run works until ctx is done.
func (p *prompt) run(ctx context.Context) error {
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, each := range []struct {
		bell chan struct{}
		do   func(context.Context, *pgx.Conn) error
	}{{p.woken, p.send}, {p.landed, p.mark}} {
		c, err := pgx.Connect(ctx, p.dsn)
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		both.Go(func() {
			for errs[i] == nil {
				select {
				case <-each.bell:
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
	found, err := c.Query(ctx, promptRead, internal)
	if err != nil {
		return err
	}
	var (
		seq                        int64
		id, key, kind, contentType string
		body                       []byte
	)
	_, err = pgx.ForEachRow(found, []any{&seq, &id, &key, &kind, &contentType, &body}, func() error {
		p.mu.Lock()
		known := p.out[seq]
		p.out[seq] = true
		p.mu.Unlock()
		if known {
			return nil
		}
		seq, key := seq, key
		p.client.Produce(ctx, &kgo.Record{Topic: p.topic, Key: []byte(key), Value: body, Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte(id)}, {Key: "type", Value: []byte(kind)}, {Key: "content-type", Value: []byte(contentType)},
		}}, func(_ *kgo.Record, err error) { p.landing(seq, key, err) })
		return nil
	})
	return err
}

func (p *prompt) landing(seq int64, key string, err error) {
	if err == nil {
		p.watch.answer(time.Now(), broker.Message{Key: key})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
	p.arrived = append(p.arrived, seq)
	ring(p.landed)
}

func (p *prompt) mark(ctx context.Context, c *pgx.Conn) error {
	p.mu.Lock()
	seqs := p.arrived
	p.arrived = nil
	p.mu.Unlock()
	_, err := c.Exec(ctx, relayMark, seqs)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marked = append(p.marked, seqs...)
	return err
}
