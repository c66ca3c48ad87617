package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// byHand is what a program without a framework would do: four round trips with
// prepared statements. It writes the columns that Waybill writes, and a body of
// Waybill's size, but encodes nothing: the body is a sample's.
type byHand struct {
	c      *pgx.Conn
	tables *tables
	body   []byte
}

const insertDocument = "INSERT INTO documents (category, id, version, state, unit) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"

func newByHand(ctx context.Context, t *tables, c *pgx.Conn) (*byHand, error) {
	rows, err := sample(limitPartitions, 1, 1)
	if err != nil {
		return nil, err
	}
	for _, s := range []string{insertDocument, t.insert} {
		if _, err := c.Prepare(ctx, s, s); err != nil {
			return nil, err
		}
	}
	return &byHand{c: c, tables: t, body: rows[0].Payload}, nil
}

// filed is a paper that is to be stored by hand.
type filed struct{ id, text string }

func newFiled(text string) filed { return filed{uuid.Must(uuid.NewV7()).String(), text} }

func (h *byHand) save(ctx context.Context, f filed) error {
	tx, err := h.c.Begin(ctx)
	if err != nil {
		return err
	}
	state := `{"Text":"` + f.text + `"}`
	tag, err := tx.Exec(ctx, insertDocument, category, f.id, int64(1), state, uuid.Must(uuid.NewV7()).String())
	if err != nil {
		return err
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("paper %s exists", f.id)
	}
	id := func() [16]byte { return uuid.Must(uuid.NewV7()) }
	_, err = tx.Exec(ctx, h.tables.insert, id(), id(), h.tables.lane, category+"-"+f.id, category,
		f.id, outbox.PartitionOf(f.id, limitPartitions), "Desk.PaperFiled.v1", "paper", int64(1), h.body,
		"application/json", uuid.Must(uuid.NewV7()).String(), 0, time.Now())
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// sample makes the rows of n events on a number of keys, as Waybill does.
func sample(partitions, n, keys int) ([]outbox.Row, error) {
	w := outbox.Writer{Domain: desk, Internal: internal}
	events := make([]outbox.Event, n)
	versions := make([]int64, keys)
	for i := range events {
		// Keys come in no order, each with about as many events as the others.
		k := int(uint64(i) * 2654435761 % uint64(keys))
		versions[k]++
		data, err := json.Marshal(PaperFiled{Text: text()})
		if err != nil {
			return nil, err
		}
		key := fmt.Sprintf("%08d-0000-7000-8000-000000000000", k)
		events[i] = outbox.Event{Data: data, Metadata: domain.Metadata{
			Origin: domain.Origin{CorrelationID: uuid.Must(uuid.NewV7()).String()},
			ID:     uuid.Must(uuid.NewV7()).String(), Type: "Desk.PaperFiled.v1", Time: time.Now(),
			Stream: category + "-" + key, Category: category, Context: "desk", Aggregate: "paper", AggregateID: key,
			Version: versions[k], Sequence: fmt.Sprintf("%d.1", versions[k]),
		}}
	}
	return w.Rows(events, partitions)
}
