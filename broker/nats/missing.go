package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// missing counts what the stream's limits, or somebody, removed before the group got it, and what
// is gone with the stream.
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
	// ahead is how many the server had for this member, as of the last delivery, and those that it
	// took back before anybody asked for them.
	ahead int64
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
func (m *missing) came(meta *nats.MsgMetadata) {
	at, last := meta.Sequence, max(m.stream, m.seen)
	if m.counts && m.stream > 0 && at.Consumer == m.number+1 && at.Stream > last+1 {
		m.count += int64(at.Stream - last - 1)
	}
	m.number, m.stream, m.seen, m.ahead = at.Consumer, at.Stream, max(m.seen, at.Stream), int64(meta.NumPending)
}

// gone takes in that the stream is gone, with all that the group hadn't received. That is at
// least so many: what was published later than the last delivery nobody knows.
func (m *missing) gone() (atLeast int64) {
	atLeast, m.ahead = m.ahead, 0
	m.count += atLeast
	return atLeast
}

// tells says whether it can be told what is missing of a stream, and when that was made: not
// without the right to look at it.
func (b *Broker) tells(ctx context.Context, stream, topic string) (counts bool, made time.Time, err error) {
	ctx, cancel := b.watch(ctx, "$JS.API.STREAM.INFO."+stream)
	defer cancel()
	s, err := b.js.Stream(ctx, stream)
	if err = cause(ctx, err); errors.Is(err, nats.ErrPermissionViolation) {
		return false, made, nil
	}
	if err != nil {
		return false, made, err
	}
	info := s.CachedInfo()
	return info.Config.Retention == jetstream.LimitsPolicy && slices.Equal(info.Config.Subjects, []string{topic}), info.Created, nil
}

// gone says why the group's consumer isn't there any more, of which the server said err. It is nil as
// long as the server doesn't answer.
func (c *consumer) gone(ctx context.Context, err error) error {
	var now time.Time
	if !c.made.IsZero() {
		var asked error
		if _, now, asked = c.b.tells(ctx, c.stream, c.topic); asked != nil && !errors.Is(asked, jetstream.ErrStreamNotFound) {
			return nil
		}
		if asked != nil || !now.IsZero() && !now.Equal(c.made) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lose()
			return fmt.Errorf("nats: receive: stream %s was deleted, or its server has lost it, with what the group had not received, at least %d messages:"+
				" have the sender publish them again: %w", c.stream, c.missing.gone(), err)
		}
	}
	if now.IsZero() {
		return fmt.Errorf("nats: receive: the group's consumer %s is gone, or its stream %s: %w", c.name, c.stream, err)
	}
	return fmt.Errorf("nats: receive: the group's consumer %s of stream %s was deleted: the next one begins with the oldest message: %w", c.name, c.stream, err)
}

// errMoved says that another stream has the topic.
var errMoved = errors.New("the topic has another stream")

// moved is an error if another stream has the topic now, or none, and the group is through with this
// one: nothing would come any more, and nobody would say so.
func (c *consumer) moved(ctx context.Context, reconnected <-chan struct{}) error {
	watched, end := c.b.watch(ctx, "$JS.API.STREAM.NAMES")
	defer end()
	asking, cancel := until(watched, reconnected, c.b.timing.pull)
	defer cancel()
	stream, err := c.b.js.StreamNameBySubject(asking, c.topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = "none", nil
	}
	if err != nil || stream == c.stream {
		return nil // the session finds out what is wrong
	}
	if info, err := c.info(ctx, reconnected); err != nil || info.NumPending > 0 || info.NumAckPending > 0 {
		return nil // as above
	}
	return fmt.Errorf("%w, %s, and the group has handled all of stream %s: it has to be joined again", errMoved, stream, c.stream)
}
