package chaos

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/verdict"
)

// Delivered is all that topics have whose names begin with a prefix, read without the
// adapter, in the order of each partition. client makes one of Kafka, to be closed.
func Delivered(ctx context.Context, client func(...kgo.Opt) (*kgo.Client, error), prefix string) ([]verdict.Delivery, error) {
	names, left, err := content(ctx, client, prefix)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	n := 0
	for _, partitions := range left {
		n += len(partitions)
	}
	reader, err := client(kgo.ConsumeTopics(names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // these end a partition with transactions
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var all []verdict.Delivery
	for n > 0 {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("not all was read of Kafka: %d partitions of %v are left: %w", n, names, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end := left[r.Topic][r.Partition]
			if r.Offset >= end {
				return
			}
			if r.Offset == end-1 {
				n--
			}
			if !r.Attrs.IsControl() {
				all = append(all, delivery(r))
			}
		})
	}
	slices.SortStableFunc(all, func(a, b verdict.Delivery) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return all, nil
}

// content are the topics, and where those of their partitions end that have something.
func content(ctx context.Context, client func(...kgo.Opt) (*kgo.Client, error), prefix string) ([]string, map[string]map[int32]int64, error) {
	c, err := client()
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	names, err := Topics(ctx, admin, prefix)
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	ends, err := admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, nil, err
	}
	if err := ends.Error(); err != nil {
		return nil, nil, err
	}
	left := map[string]map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset == 0 {
			return
		}
		if left[o.Topic] == nil {
			left[o.Topic] = map[int32]int64{}
		}
		left[o.Topic][o.Partition] = o.Offset
	})
	return names, left, nil
}

// Topics are those whose names begin with a prefix.
func Topics(ctx context.Context, admin *kadm.Client, prefix string) ([]string, error) {
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(topics.Names(), func(name string) bool { return !strings.HasPrefix(name, prefix) }), nil
}

func delivery(r *kgo.Record) verdict.Delivery {
	d := verdict.Delivery{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, At: r.Timestamp, Key: string(r.Key), Body: r.Value}
	for _, h := range r.Headers {
		if h.Key == "id" {
			d.ID = string(h.Value)
		}
	}
	return d
}
