// Package broker is the port to message brokers. It knows messages and their
// delivery, and nothing of outboxes, aggregates or subscriptions.
//
// The adapters are broker/kafka, broker/nats, broker/memory and
// broker/watermill; broker/brokertest is the suite that all of them pass.
package broker

import (
	"context"
	"log/slog"
	"maps"
	"time"
)

// Message is what travels. An adapter sends Body as it is.
type Message struct {
	ID      string            // The same on every attempt; brokers that deduplicate use it. Required.
	Topic   string            // Where to. Required.
	Key     string            // Messages of one key stay in order. Required.
	Headers map[string]string // Native headers, such as "type" and "content-type".
	Body    []byte
	// CloudEvent are the attributes of a CloudEvent of which Body is the data,
	// without datacontenttype, which is the header "content-type". An adapter sends
	// them as native headers, named and encoded as the CloudEvents binding of its
	// protocol says; Receive returns them among Headers, under the names that they have
	// there, and decoded. Nil: Body is not the data of a CloudEvent.
	CloudEvent map[string]string
}

// NativeHeaders are the headers of m together with the attributes of its
// CloudEvent, each under prefix and its name.
func (m Message) NativeHeaders(prefix string) map[string]string {
	if len(m.CloudEvent) == 0 {
		return m.Headers
	}
	all := make(map[string]string, len(m.Headers)+len(m.CloudEvent))
	maps.Copy(all, m.Headers)
	for name, value := range m.CloudEvent {
		all[prefix+name] = value
	}
	return all
}

// Publisher sends batches. It is safe for concurrent use.
type Publisher interface {
	// Publish sends messages, those of one key in the order given, and returns
	// when the broker has answered for each of them or ctx is done. Nil says that
	// all are stored. A [*PublishError] names those that are not; any other error
	// says that none is known to be stored. [ClassOf] tells what an error means.
	//
	// Several messages of one key may be in one call only if the broker declares
	// Capabilities.Prefix. What is then held back, because one before it failed,
	// is among the failures.
	Publish(ctx context.Context, messages []Message) error
}

// Consumer pulls the messages of one topic for one group. Receive is called by
// one goroutine at a time; Ack and Release may be called by others meanwhile.
type Consumer interface {
	// Receive waits for at least one message and returns at most limit. It
	// returns ctx's error when ctx is done.
	Receive(ctx context.Context, limit int) ([]Delivery, error)
	// Ack settles deliveries whose effect is durable, in any order; the adapter
	// turns them into what its broker has, such as a contiguous offset. After an
	// error they may come again, and so may those that were lost.
	Ack(ctx context.Context, deliveries ...Delivery) error
	// Release gives deliveries back to be received again, by this consumer or
	// another of its group.
	Release(ctx context.Context, deliveries ...Delivery) error
	// Close leaves the group. What was received and not acknowledged is
	// delivered again to the group.
	Close(ctx context.Context) error
}

// Clustered is a [Broker] that knows which servers of its kind it reaches.
type Clustered interface {
	// Cluster is the same for all processes that reach the same servers, by whatever
	// address. It doesn't ask the broker. "": not known, as none was reached yet.
	Cluster() string
}

// Limiting is a [Broker] that knows the largest message that its server takes.
type Limiting interface {
	// MaxMessage is in bytes, with key and headers; 0 as long as it isn't known. It
	// doesn't ask the server.
	MaxMessage() int
}

// Lagging is a [Consumer] of a broker that knows how much is left to do.
type Lagging interface {
	// Lag is how many messages the consumer's share of the group has not
	// acknowledged yet: those that wait, those that were received, and those that
	// were released. Where the broker divides a topic among the members, the shares
	// add up to the group's lag; where it doesn't, each member says the group's.
	//
	// Lag may be called by several goroutines, beside Receive. It may ask the
	// broker. While a share isn't known, such as before the group was joined, it is
	// an error.
	Lag(ctx context.Context) (messages int64, err error)
}

// Stateful is a [Consumer] that knows how it fares also while it receives nothing.
type Stateful interface {
	// State may be called at any time, also beside Receive. It doesn't ask the
	// broker.
	State() State
}

// State is how a [Consumer] fares. It is well if it is Joined and has no LastError.
type State struct {
	// Joined: it is in its group, and gets what comes or stands by to take over.
	Joined bool
	Since  time.Time // When Joined became what it is.
	// Partitions is how many parts of the topic are this consumer's, where the broker
	// divides a topic among the members. 0: none, or it doesn't.
	Partitions int
	// LastError is what keeps it from joining or, while it is Joined, from receiving
	// all or a part of what comes. Nil as soon as that is over. Its [Class] is
	// [Permanent] where it needs somebody, such as one who gives a right.
	LastError error
	// Missed is how many messages this consumer can never get, because the broker
	// removed them before the group had acknowledged them: positions in the topic,
	// where those are what the broker knows. It doesn't fall. 0 also where the broker
	// doesn't say.
	Missed int64
}

// Well says whether a consumer gets everything that comes.
func (s State) Well() bool { return s.Joined && s.LastError == nil }

// Delivery is a message on loan.
type Delivery struct {
	Message
	// Published is when the message was published, by the broker's clock or, where
	// it keeps that one, the publisher's. Zero: the broker does not say.
	Published time.Time
	// Partition names a part of the topic that this consumer has to itself, and gets
	// in the order of the broker: what was before the first message that it got of it
	// is acknowledged. What comes later of a key is in the same part, unless the topic
	// is divided anew. When it is taken back, so is all that was not acknowledged of it.
	// "": the broker doesn't say.
	Partition   string
	Redelivered int // How often it was delivered before, where the broker knows.
	// Lost is closed when the broker took the message back: stop work on it. It is
	// closed for everything that was taken back before any of it is delivered
	// again. Nil: never.
	Lost  <-chan struct{}
	Token any // The adapter's own.
}

// Broker is a connection to one broker. Whoever opened it closes it. It is safe
// for concurrent use.
type Broker interface {
	Publisher
	// EnsureTopics creates the topics that are missing and leaves the others as
	// they are.
	EnsureTopics(ctx context.Context, topics ...string) error
	// Consume joins group on topic. A new group starts at the oldest message.
	Consume(ctx context.Context, topic, group string) (Consumer, error)
	Capabilities() Capabilities
	Close(ctx context.Context) error
}

// Capabilities says which promises a broker keeps, and what traces call it.
// brokertest asserts what is declared, and only that.
type Capabilities struct {
	// System is what OpenTelemetry calls this kind of broker, its messaging.system,
	// such as "kafka". "": traces don't say.
	System string
	// TopicPrefix is what the broker puts before the names of topics and groups.
	TopicPrefix string
	// Prefix: of a key's messages in one call, what the broker accepts is always
	// a leading run, and once Publish has returned nothing more of it is sent.
	// Without it, one call holds one message of a key.
	Prefix bool
	// KeyOrder: a group receives the messages of one key in the order in which
	// they were published, also while members come and go. What comes again comes
	// before what is later; only a message released while a later one of its key
	// is still out comes after it.
	KeyOrder bool
	// Groups: every group gets all messages of a topic, and of its members one
	// gets each. How they share, or whether one works while the others stand by,
	// is the broker's.
	Groups bool
	// Redelivery: what a consumer did not acknowledge comes again.
	Redelivery bool
	// Dedup: a message published again under the same id is stored once, within
	// the broker's own window.
	Dedup bool
	// Durable: messages survive a restart of the broker.
	Durable bool
}

// Settings is a broker's part of a configuration file, not yet understood.
type Settings interface {
	// Decode fills in into, a pointer to a struct with yaml tags. A key that
	// into does not have is an error.
	Decode(into any) error
}

// Logging is what [Settings] may be, too.
type Logging interface {
	// Logger is where the adapter logs; nil: to [slog.Default].
	Logger() *slog.Logger
}

// LoggerOf is where an adapter with these settings logs; nil: they say nothing of it.
func LoggerOf(s Settings) *slog.Logger {
	if l, ok := s.(Logging); ok {
		return l.Logger()
	}
	return nil
}

// Opener opens a broker from its settings. Each adapter exports one, such as
// kafka.FromSettings. It fails where the settings are wrong or the server refuses
// them, and not because the server is away: what is opened then reaches it when it
// can, answers [Unavailable] until it does, and lets Consume fail.
type Opener func(ctx context.Context, s Settings) (Broker, error)
