package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readNATS reads the stream that holds a subject until ctx is done.
func readNATS(ctx context.Context, url, nkey, subject string, stderr io.Writer, show func([]byte)) error {
	options := []nats.Option{nats.Name("partner"), nats.MaxReconnects(-1)}
	if nkey != "" {
		key, err := nats.NkeyOptionFromSeed(nkey)
		if err != nil {
			return fmt.Errorf("--nkey: %w", err)
		}
		options = append(options, key)
	}
	connection, err := nats.Connect(url, options...)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err) // Without the URL, which may hold a password.
	}
	defer connection.Close()
	streams, err := jetstream.New(connection)
	if err != nil {
		return err
	}
	name, err := awaitStream(ctx, streams, subject, stderr)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	consumer, err := streams.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return err
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) { show(m.Data()) })
	if err != nil {
		return err
	}
	<-ctx.Done()
	consuming.Stop()
	<-consuming.Closed()
	return nil
}

// awaitStream returns the stream of a subject as soon as there is one.
func awaitStream(ctx context.Context, streams jetstream.JetStream, subject string, stderr io.Writer) (string, error) {
	for tries := 0; ctx.Err() == nil; tries++ {
		name, err := streams.StreamNameBySubject(ctx, subject)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return name, err
		}
		if tries == 0 {
			fmt.Fprintf(stderr, "partner: there is no stream with subject %s yet\n", subject)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return "", nil
}
