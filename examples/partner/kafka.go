package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// pause is between two looks for a topic that doesn't exist yet.
const pause = 500 * time.Millisecond

// readKafka reads all partitions of a topic until ctx is done.
func readKafka(ctx context.Context, addr, topic string, stderr io.Writer, show func([]byte)) error {
	client, err := sarama.NewClient([]string{addr}, sarama.NewConfig())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	partitions, err := awaitTopic(ctx, client, topic, stderr)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer func() { _ = consumer.Close() }()

	messages := make(chan *sarama.ConsumerMessage)
	var reading sync.WaitGroup
	defer reading.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range partitions {
		partition, err := awaitLeader(ctx, client, func() (sarama.PartitionConsumer, error) {
			return consumer.ConsumePartition(topic, n, sarama.OffsetOldest)
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("partition %d of %s: %w", n, topic, err)
		}
		defer partition.AsyncClose()
		reading.Go(func() {
			for m := range partition.Messages() {
				select {
				case messages <- m:
				case <-ctx.Done():
				}
			}
		})
	}
	for {
		select {
		case m := <-messages:
			show(m.Value)
		case <-ctx.Done():
			return nil
		}
	}
}

// awaitTopic returns the partitions of a topic as soon as it exists.
func awaitTopic(ctx context.Context, client sarama.Client, topic string, stderr io.Writer) ([]int32, error) {
	for tries := 0; ctx.Err() == nil; tries++ {
		err := client.RefreshMetadata(topic)
		if err == nil {
			return client.Partitions(topic)
		}
		if !young(err) {
			return nil, err
		}
		if tries == 0 {
			fmt.Fprintf(stderr, "partner: there is no topic %s yet\n", topic)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil, nil
}

// young says that a topic doesn't exist, or has just been created.
func young(err error) bool {
	return errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable) || errors.Is(err, sarama.ErrNotLeaderForPartition)
}

// awaitLeader opens a partition as soon as its server knows that it has it.
func awaitLeader(ctx context.Context, client sarama.Client, open func() (sarama.PartitionConsumer, error)) (sarama.PartitionConsumer, error) {
	for {
		partition, err := open()
		if err == nil || !young(err) {
			return partition, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		_ = client.RefreshMetadata() // the next try shows
	}
}
