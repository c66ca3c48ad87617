package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// Config says where Kafka is and how to use it. Settings that would lose or
// reorder messages are refused.
type Config struct {
	// Addresses are some of the cluster's servers, as host:port; the others are
	// found through them. Required.
	Addresses []string `yaml:"addresses"`
	// Partitions of a topic that EnsureTopics creates. Defaults to 8.
	Partitions int `yaml:"partitions"`
	// ReplicationFactor of a topic that EnsureTopics creates. Defaults to the
	// cluster's own default.
	ReplicationFactor int `yaml:"replication_factor"`
	// Compression of what is published: none, gzip, snappy, lz4 or zstd. Defaults
	// to lz4.
	Compression string `yaml:"compression"`
	// MaxMessageBytes is the largest message that is sent: body, key, headers and
	// some 100 bytes more, before compression. Topics that EnsureTopics creates
	// take as much; for others raise max.message.bytes of the topic, which is
	// 1048588 by default. Defaults to 1114112, which is 1 MiB of body and 64 KiB for
	// the rest.
	MaxMessageBytes int `yaml:"max_message_bytes"`
	// PublishTimeout bounds a call of Publish, beside its context. Defaults to 30 s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// Logger hears when consuming is interrupted and when it goes on. Defaults to
	// slog.Default().
	Logger *slog.Logger `yaml:"-"`
	// Tune changes what the fields above don't reach, such as TLS, SASL or the
	// protocol version. It is called last, and what it sets is checked again. Open calls
	// it, and so does each Consume, as a consumer has a configuration of its own: what
	// has a state, such as a strategy of balancing, is to be made anew each time.
	// Producer.Retry.Max and Producer.Flush have no effect: a call of Publish is a
	// batch, and is tried again until it is answered or PublishTimeout is over.
	Tune func(*sarama.Config) `yaml:"-"`
}

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func (c Config) withDefaults() Config {
	c.Partitions = cmp.Or(c.Partitions, 8)
	c.ReplicationFactor = cmp.Or(c.ReplicationFactor, -1)
	c.Compression = cmp.Or(c.Compression, "lz4")
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 1<<20+64<<10)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 30*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// sarama is the client's configuration, or everything that is wrong with it.
func (c Config) sarama() (*sarama.Config, error) {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kafka: "+format, args...))
	}
	if len(c.Addresses) == 0 {
		wrong("addresses is missing: give host:port of at least one server")
	}
	for _, address := range c.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			wrong("addresses has %q: write it as host:port", address)
		}
	}
	if c.Partitions < 1 {
		wrong("partitions is %d: use 1 or more", c.Partitions)
	}
	if c.ReplicationFactor < 1 && c.ReplicationFactor != -1 {
		wrong("replication_factor is %d: use 1 or more, or leave it out for the cluster's default", c.ReplicationFactor)
	}
	codec, known := codecs[c.Compression]
	if !known {
		wrong("compression is %q: use one of %v", c.Compression, slices.Sorted(maps.Keys(codecs)))
	}
	if c.MaxMessageBytes < 1024 {
		wrong("max_message_bytes is %d: use 1024 or more", c.MaxMessageBytes)
	}
	if c.PublishTimeout < time.Second {
		wrong("publish_timeout is %v: use 1s or more", c.PublishTimeout)
	}

	s := sarama.NewConfig()
	s.ClientID = "waybill"
	s.ChannelBufferSize = 64
	s.Net.MaxOpenRequests = 1
	s.Net.DialTimeout = 3 * time.Second
	s.Net.ReadTimeout = 15 * time.Second
	s.Net.WriteTimeout = 15 * time.Second
	s.Metadata.Full = false
	s.Metadata.AllowAutoTopicCreation = false
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.Idempotent = true
	s.Producer.Partitioner = sarama.NewMurmur2Partitioner // As Java's.
	s.Producer.Compression = codec
	s.Producer.MaxMessageBytes = c.MaxMessageBytes
	s.Consumer.MaxWaitTime = 250 * time.Millisecond
	s.Consumer.Retry.Backoff = 500 * time.Millisecond
	s.Consumer.Return.Errors = true
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Offsets.AutoCommit.Interval = 500 * time.Millisecond
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	s.Consumer.Group.Heartbeat.Interval = time.Second // A member hears of a rebalance with its heartbeat.
	s.Consumer.Group.Rebalance.Timeout = 30 * time.Second
	s.Consumer.Group.Rebalance.Retry.Backoff = 500 * time.Millisecond
	if c.Tune != nil {
		c.Tune(s)
	}

	if s.Producer.RequiredAcks != sarama.WaitForAll {
		wrong("Tune set Producer.RequiredAcks to %d: only WaitForAll keeps messages when a leader fails", s.Producer.RequiredAcks)
	}
	if !s.Producer.Idempotent {
		wrong("Tune switched Producer.Idempotent off: without it a retry stores a message twice or out of order")
	}
	if s.Net.MaxOpenRequests != 1 {
		wrong("Tune set Net.MaxOpenRequests to %d: with more than 1 a retry can overtake; several calls of Publish run side by side anyway", s.Net.MaxOpenRequests)
	}
	if s.Producer.Transaction.ID != "" {
		wrong("Tune set Producer.Transaction.ID: transactions are not supported")
	}
	if len(s.Producer.Interceptors) > 0 {
		wrong("Tune set Producer.Interceptors: they are not called; change the message before Publish")
	}
	if s.Producer.Partitioner != nil && !s.Producer.Partitioner("").RequiresConsistency() {
		wrong("Tune set a Producer.Partitioner that doesn't go by the key: messages of one key would lose their order")
	}
	if s.Producer.MaxMessageBytes != c.MaxMessageBytes {
		wrong("Tune set Producer.MaxMessageBytes: use MaxMessageBytes")
	}
	if s.Consumer.Offsets.Initial != sarama.OffsetOldest {
		wrong("Tune set Consumer.Offsets.Initial: a new group that doesn't start at OffsetOldest misses what was published before it joined")
	}
	if !s.Consumer.Offsets.AutoCommit.Enable {
		wrong("Tune switched Consumer.Offsets.AutoCommit off: it commits what was acknowledged, and only that")
	}
	if !s.Version.IsAtLeast(sarama.V2_4_0_0) {
		wrong("Tune set Version to %v: Kafka 2.4 is the oldest that is supported", s.Version)
	}
	if len(errs) == 0 {
		if err := s.Validate(); err != nil {
			wrong("Tune: %w", err)
		}
	}
	return s, errors.Join(errs...)
}
