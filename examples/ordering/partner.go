package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// partner is somebody else's program, as far as this one can be: it knows the
// server's address, a subject and JSON. It reads from the first message on.
type partner struct {
	connection *nats.Conn
	consuming  jetstream.ConsumeContext

	mu       sync.Mutex
	received map[string]int // by message id
	strange  int            // messages that it can't read
}

func newPartner(ctx context.Context, url, keyFile, subject string) (*partner, error) {
	p := &partner{received: map[string]int{}}
	key, err := nats.NkeyOptionFromSeed(keyFile)
	if err != nil {
		return nil, fmt.Errorf("partner: %w", err)
	}
	if p.connection, err = nats.Connect(url, nats.Name("partner"), key); err != nil {
		return nil, fmt.Errorf("partner: %w", err)
	}
	if err := p.listen(ctx, subject); err != nil {
		p.connection.Close()
		return nil, fmt.Errorf("partner: %w", err)
	}
	return p, nil
}

func (p *partner) listen(ctx context.Context, subject string) error {
	stream, err := jetstream.New(p.connection)
	if err != nil {
		return err
	}
	name, err := stream.StreamNameBySubject(ctx, subject)
	if err != nil {
		return err
	}
	consumer, err := stream.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	p.consuming, err = consumer.Consume(func(m jetstream.Msg) { p.hear(m.Data()) })
	return err
}

func (p *partner) hear(body []byte) {
	var message struct {
		Metadata struct {
			Headers struct {
				ID string `json:"id"`
			} `json:"headers"`
		} `json:"metadata"`
	}
	err := json.Unmarshal(body, &message)
	p.mu.Lock()
	defer p.mu.Unlock()
	if id := message.Metadata.Headers.ID; err == nil && id != "" {
		p.received[id]++
	} else {
		p.strange++
	}
}

// heard is how often each message came, by its id.
func (p *partner) heard() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.received)
}

// unreadable is how many messages were no JSON with an id.
func (p *partner) unreadable() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.strange
}

func (p *partner) close() {
	p.consuming.Stop()
	<-p.consuming.Closed()
	p.connection.Close()
}
