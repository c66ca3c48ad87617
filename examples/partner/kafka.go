package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// pause is between two looks for a topic that doesn't exist yet.
const pause = 500 * time.Millisecond

// readKafka reads all partitions of a topic until ctx is done.
func readKafka(ctx context.Context, addr, topic string, stderr io.Writer, show func([]byte)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.MetadataMinAge(pause),
		kgo.UnknownTopicRetries(-1)) // Of a topic that doesn't exist we hear at once.
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("no Kafka at %s: %w", addr, err)
	}
	for told := false; ; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, kerr.UnknownTopicOrPartition) {
				return fmt.Errorf("partition %d of %s: %w", failed.Partition, topic, failed.Err)
			}
			if !told {
				told = true
				fmt.Fprintf(stderr, "partner: there is no topic %s yet\n", topic)
			}
		}
		fetches.EachRecord(func(r *kgo.Record) { show(r.Value) })
	}
}
