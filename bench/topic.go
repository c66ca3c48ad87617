package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/outbox"
)

// read reads a topic from its beginning to its end, as any other program would.
// It takes what was there when the reading began, and is asked only after the
// last message has been acknowledged.
func (w *world) read(ctx context.Context, topic string) ([]*kgo.Record, error) {
	c, err := kgo.NewClient(kgo.SeedBrokers(w.kafka), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // these end a partition with transactions
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ends, err := kadm.NewClient(c).ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(e kadm.ListedOffset) {
		if e.Offset > 0 {
			left[e.Partition] = e.Offset
		}
	})
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		if err := errors.Join(fetches.Err(), ctx.Err()); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		})
	}
	return records, nil
}

// check says whether records are rows, each once, those of a key in their order.
func check(rows []outbox.Row, records []*kgo.Record) error {
	place := make(map[string]int, len(rows))
	for i, r := range rows {
		place[r.MessageID] = i
	}
	last := map[string]int{}
	var foreign, twice, disordered int
	seen := make([]bool, len(rows))
	for _, r := range records {
		i, known := place[header(r, "id")]
		switch {
		case !known || rows[i].PartitionKey != string(r.Key) || string(rows[i].Payload) != string(r.Value):
			foreign++
			continue
		case seen[i]:
			twice++
			continue
		}
		seen[i] = true
		if before, ok := last[string(r.Key)]; ok && i < before {
			disordered++
		}
		last[string(r.Key)] = i
	}
	missing := 0
	for _, there := range seen {
		if !there {
			missing++
		}
	}
	if missing+foreign+twice+disordered > 0 {
		return fmt.Errorf("of %d messages %d are missing in the topic, %d came twice, %d out of order, and %d are none of them",
			len(rows), missing, twice, disordered, foreign)
	}
	return nil
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
