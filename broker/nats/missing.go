package nats

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// missing counts what the stream's limits, or somebody, removed before the group got it.
// The server numbers its deliveries: between two with successive numbers it had nothing
// to give, so what is between them in the stream isn't there any more. That is only so
// where the topic has the stream to itself, and acknowledging removes nothing. What a
// member had in hand that died isn't counted, nor what somebody purged while there was no
// member. The consumer's mutex protects it.
type missing struct {
	counts bool  // It can be told.
	count  int64 // How many so far.
	// The last delivery that is known of, to whomever. stream is 0 if none is.
	number, stream uint64
	seen           uint64 // Up to here in the stream all was delivered to this member, or counted.
}

// looked takes in what the server says of the group while this member hasn't got it.
// stream stays where it is while number does, as the server goes past what was removed.
func (m *missing) looked(last jetstream.SequenceInfo) {
	if m.stream == 0 || m.number != last.Consumer {
		m.number, m.stream = last.Consumer, last.Stream
	}
}

// starts takes in that the server numbers deliveries anew, from a place in the stream on.
func (m *missing) starts(from uint64) { m.number, m.stream = 0, max(from, 1)-1 }

// came takes in a delivery to this member.
func (m *missing) came(at nats.SequencePair) {
	last := max(m.stream, m.seen)
	if m.counts && m.stream > 0 && at.Consumer == m.number+1 && at.Stream > last+1 {
		m.count += int64(at.Stream - last - 1)
	}
	m.number, m.stream, m.seen = at.Consumer, at.Stream, max(m.seen, at.Stream)
}

// tells says whether it can be told what is missing of a stream: not without the right to
// look at it.
func (b *Broker) tells(ctx context.Context, stream, topic string) (bool, error) {
	ctx, cancel := b.watch(ctx, "$JS.API.STREAM.INFO."+stream)
	defer cancel()
	s, err := b.js.Stream(ctx, stream)
	if err = cause(ctx, err); errors.Is(err, nats.ErrPermissionViolation) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	cfg := s.CachedInfo().Config
	return cfg.Retention == jetstream.LimitsPolicy && slices.Equal(cfg.Subjects, []string{topic}), nil
}
