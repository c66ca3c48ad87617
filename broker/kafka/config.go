package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Config says where Kafka is and how to use it. Settings that would lose or
// reorder messages are refused.
type Config struct {
	// Addresses are some of the cluster's servers, as host:port; the others are
	// found through them. Required.
	Addresses []string `yaml:"addresses"`
	// TLS connects with TLS. The zero value: plain connections.
	TLS TLS `yaml:"tls"`
	// SASL logs in. The zero value: no login.
	SASL SASL `yaml:"sasl"`
	// Partitions of a topic that EnsureTopics creates. Defaults to 8.
	Partitions int `yaml:"partitions"`
	// ReplicationFactor of a topic that EnsureTopics creates. Defaults to the
	// cluster's own default.
	ReplicationFactor int `yaml:"replication_factor"`
	// MinInSyncReplicas of a topic that EnsureTopics creates: so many replicas have
	// a message before it counts as stored. Defaults to the cluster's own default.
	MinInSyncReplicas int `yaml:"min_insync_replicas"`
	// Compression of what is published: none, gzip, snappy, lz4 or zstd. Defaults
	// to snappy: lz4 takes twice the time and megabytes for each reader.
	Compression string `yaml:"compression"`
	// MaxMessageBytes is the largest message that is sent: body, key, headers and
	// some 100 bytes more, before compression. Topics that EnsureTopics creates
	// take as much; for others raise max.message.bytes of the topic, which is
	// 1048588 by default. Defaults to 1114112, which is 1 MiB of body and 64 KiB for
	// the rest.
	MaxMessageBytes int `yaml:"max_message_bytes"`
	// MaxBatchBytes is the largest batch that is consumed, decompressed. A larger
	// one stops its partition, which the consumer's State says. Defaults to 64 MiB.
	MaxBatchBytes int `yaml:"max_batch_bytes"`
	// ExactlyOnce has outboxes publish in transactions, so that consumers that read what is
	// committed, such as this package's, get each message once. It needs Kafka 2.5.
	ExactlyOnce bool `yaml:"exactly_once"`
	// PublishTimeout bounds a call of Publish, beside its context. Defaults to 30 s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// SessionTimeout is after what silence a member of a group is given up; one whose
	// process has ended is at once when another joins on its host. Kafka allows 6 s to
	// 30 min, unless it is told otherwise. Defaults to 10 s.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// RebalanceTimeout is how long members have to join again when others come or
	// go. A partition that is taken away waits for what is in hand for at most half of
	// it, and 5 s. Defaults to 30 s.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// Logger hears when consuming is interrupted and when it goes on. Defaults to
	// slog.Default().
	Logger *slog.Logger `yaml:"-"`
	// Dial connects, instead of a net.Dialer. TLS comes on top of it.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) `yaml:"-"`
	// Options reach what the fields above don't, such as Kerberos. Those that the
	// guarantees rest on come after them; what none can come after is refused.
	Options []kgo.Opt `yaml:"-"`

	spread *spread // Of all clients.
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func (c Config) withDefaults() Config {
	c.Partitions = cmp.Or(c.Partitions, 8)
	c.ReplicationFactor = cmp.Or(c.ReplicationFactor, -1)
	c.Compression = cmp.Or(c.Compression, "snappy")
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 1<<20+64<<10)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, 64<<20)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 30*time.Second)
	c.SessionTimeout = cmp.Or(c.SessionTimeout, 10*time.Second)
	c.RebalanceTimeout = cmp.Or(c.RebalanceTimeout, 30*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.spread = cmp.Or(c.spread, newSpread(c.Logger))
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: answerIn}).DialContext
	}
	return c
}

// check finds everything that is wrong with c.
func (c Config) check() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("kafka: "+format, args...))
		}
	}
	must(len(c.Addresses) > 0, "addresses is missing: give host:port of at least one server")
	for _, address := range c.Addresses {
		_, _, err := net.SplitHostPort(address)
		must(err == nil, "addresses has %q: write it as host:port", address)
	}
	must(c.Partitions >= 1, "partitions is %d: use 1 or more", c.Partitions)
	must(c.ReplicationFactor >= 1 || c.ReplicationFactor == -1, "replication_factor is %d: use 1 or more, or leave it out for the cluster's default", c.ReplicationFactor)
	must(c.MinInSyncReplicas >= 0, "min_insync_replicas is %d: use 1 or more, or leave it out for the cluster's default", c.MinInSyncReplicas)
	must(c.ReplicationFactor < 1 || c.MinInSyncReplicas <= c.ReplicationFactor, "min_insync_replicas is %d and replication_factor %d: no message could ever be stored; use fewer in-sync replicas than replicas, such as 2 of 3", c.MinInSyncReplicas, c.ReplicationFactor)
	_, known := codecs[c.Compression]
	must(known, "compression is %q: use one of %v", c.Compression, slices.Sorted(maps.Keys(codecs)))
	must(c.MaxMessageBytes >= 1024, "max_message_bytes is %d: use 1024 or more", c.MaxMessageBytes)
	must(c.MaxBatchBytes >= c.MaxMessageBytes, "max_batch_bytes is %d: use max_message_bytes, which is %d, or more", c.MaxBatchBytes, c.MaxMessageBytes)
	must(c.PublishTimeout >= time.Second, "publish_timeout is %v: use 1s or more", c.PublishTimeout)
	must(c.SessionTimeout >= 2*heartbeat, "session_timeout is %v: use %v or more, since a member is heard once a second", c.SessionTimeout, 2*heartbeat)
	must(c.RebalanceTimeout >= time.Second, "rebalance_timeout is %v: use 1s or more", c.RebalanceTimeout)
	if _, err := c.TLS.config(""); err != nil {
		must(false, "tls.%w", err)
	}
	_, err := c.SASL.mechanism()
	if err == nil {
		_, err = c.SASL.password()
	}
	if err != nil {
		must(false, "sasl.%w", err)
	}
	return errors.Join(errs...)
}

// usual are options of every client that [Config.Options] may change.
func usual() []kgo.Opt {
	return []kgo.Opt{
		kgo.ClientID(clientID),
		kgo.RequestTimeoutOverhead(answerIn),
		kgo.MetadataMaxAge(time.Minute),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(idleFetch),
		kgo.FetchMaxBytes(8 << 20),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.DisableClientMetrics(),
	}
}

// versions are the newest of each request that is sent.
func versions() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(kmsg.Produce.Int16(), 12) // Later ones don't name topics, see account.
	return v
}

// options are those of every client. What the guarantees rest on comes last, as
// the last one counts.
func (c Config) options(w *wire) []kgo.Opt {
	opts := append(usual(), c.Options...)
	opts = append(opts,
		kgo.SeedBrokers(c.Addresses...),
		kgo.Dialer(w.Dial),
		kgo.WithHooks(w),
		kgo.MaxVersions(versions()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxDecompressBatchBytes(c.MaxBatchBytes),
		kgo.RetryTimeout(10*time.Second),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.RetryBackoffFn(func(fails int) time.Duration { return min(firstWait<<min(max(fails-1, 0), 10), maxWait) }),
	)
	if mechanism, _ := c.SASL.mechanism(); mechanism != nil { // Open has checked it.
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts
}

// loose are options that can't be taken back by one that comes later.
var loose = []struct {
	name string
	set  func(*kgo.Client) bool
	why  string
}{
	{"DisableIdempotentWrite", on(kgo.DisableIdempotentWrite), "without it a retry stores a message twice or out of order"},
	{"AllowIdempotentProduceCancellation", on(kgo.AllowIdempotentProduceCancellation), "what may be stored would be given up as if it weren't"},
	{"StopProducerOnDataLossDetected", on(kgo.StopProducerOnDataLossDetected), "one partition's trouble would end all publishing"},
	{"TransactionalID", named(kgo.TransactionalID), "ids are made for each call of an outbox, see ExactlyOnce"},
	{"ConsumerGroup", named(kgo.ConsumerGroup), "Consume joins groups"},
	{"ConsumeRegex", on(kgo.ConsumeRegex), "a topic is its name"},
	{"DisableAutoCommit", on(kgo.DisableAutoCommit), "it commits what was acknowledged, and only that"},
	{"GreedyAutoCommit", on(kgo.GreedyAutoCommit), "what wasn't acknowledged would be committed"},
}

func on[O kgo.Opt](opt func() O) func(*kgo.Client) bool {
	return func(c *kgo.Client) bool { return c.OptValue(opt) == true }
}

func named[O kgo.Opt](opt func(string) O) func(*kgo.Client) bool {
	return func(c *kgo.Client) bool { return c.OptValue(opt) != "" }
}

// checkOptions finds what Options loosen.
func checkOptions(client *kgo.Client) error {
	var errs []error
	for _, o := range loose {
		if o.set(client) {
			errs = append(errs, fmt.Errorf("kafka: Options have %s: %s; leave it out", o.name, o.why))
		}
	}
	if topics := client.OptValue(kgo.DefaultProduceTopicAlways); topics == true {
		errs = append(errs, errors.New("kafka: Options have DefaultProduceTopicAlways: messages go to their own topic; leave it out"))
	}
	return errors.Join(errs...)
}
