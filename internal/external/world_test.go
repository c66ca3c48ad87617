// Package external shows what leaves for partners, and what doesn't, on real
// brokers: read by plain clients and by foreign readers of CloudEvents.
package external

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

type (
	order struct {
		domain.Root
		Notes int
	}

	OrderPlaced struct {
		OrderID string `json:"order_id"`
		Note    string `json:"note"`
	}
	NoteAdded struct {
		Note string `json:"note"`
	}
)

var ordering = domain.MustNew("ordering",
	domain.Aggregate[*order]("order", domain.Event[OrderPlaced](domain.Published()), domain.Event[NoteAdded]()),
)

// world is a database on PostgreSQL, Kafka under a prefix of its own, and a NATS
// server, which all end with the test.
type world struct {
	t      *testing.T
	db     uow.Provider
	kafka  broker.Broker
	nats   *embedded.Broker
	prefix string
	log    *output
}

func newWorld(t *testing.T, change ...func(*kafka.Config)) *world {
	t.Helper()
	p, at := dbtest.Postgres(t)
	w := &world{t: t, db: p, prefix: at.Schema + ".", log: &output{}}
	cfg := kafka.Config{Addresses: []string{dbtest.Environment(t, "WAYBILL_KAFKA")}, Logger: w.logger()}
	for _, c := range change {
		c(&cfg)
	}
	k, err := kafka.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		w.deleteTopics()
		require.NoError(t, k.Close(context.Background()))
	})
	w.kafka = broker.Prefixed(k, w.prefix)
	w.nats, err = embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.nats.Close(context.Background())) })
	return w
}

func (w *world) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// output is a log that is read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// units are ordering's, publishing to NATS and to some partners.
func (w *world) units(external ...outbox.Target) *uow.Manager {
	w.t.Helper()
	m, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{w.db}, External: external})
	require.NoError(w.t, err)
	require.NoError(w.t, engine.Migrate(w.t.Context(), m))
	return m
}

// engine makes an engine for units.
func (w *world) engine(brokers map[string]broker.Broker, units ...*uow.Manager) *engine.Engine {
	w.t.Helper()
	brokers["default"] = broker.Prefixed(w.nats, "own.")
	e, err := engine.New(engine.Config{
		Units: units, Brokers: brokers, Logger: w.logger(),
		Outbox: outbox.Config{PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond},
	})
	require.NoError(w.t, err)
	return e
}

func (w *world) run(e *engine.Engine) {
	w.t.Helper()
	require.NoError(w.t, e.Start(w.t.Context()))
	w.t.Cleanup(func() { require.NoError(w.t, e.Stop(context.Background())) })
}

// place saves an order with one published event, and three others after it.
func (w *world) place(ctx context.Context, m *uow.Manager, id, note string) {
	w.t.Helper()
	o := &order{Root: domain.RootWithID(id)}
	o.Raise(OrderPlaced{OrderID: id, Note: note})
	for range 3 {
		o.Raise(NoteAdded{Note: note})
	}
	require.NoError(w.t, repository.New[*order](m).Save(ctx, o))
}

func (w *world) find(f outbox.Filter) []outbox.Entry {
	w.t.Helper()
	entries, err := outboxdb.New(w.db.DB(), w.db.Reader()).Find(w.t.Context(), f)
	require.NoError(w.t, err)
	return entries
}

const patience = 60 * time.Second

// settled waits until every row is published or abandoned.
func (w *world) settled(rows int) (all []outbox.Entry) {
	w.t.Helper()
	waittest.Until(w.t, func() bool {
		all = w.find(outbox.Filter{Limit: 1000})
		return len(all) == rows && !slices.ContainsFunc(all, func(e outbox.Entry) bool {
			return e.Status != outbox.Published && e.Status != outbox.Abandoned
		})
	})
	return all
}

// wire is a message as a plain client gets it.
type wire struct {
	key     string
	headers map[string]string
	body    []byte
}

func (m wire) String() string {
	var lines []string
	for name, value := range m.headers {
		lines = append(lines, fmt.Sprintf("%s: %s\n", name, value))
	}
	slices.Sort(lines)
	text := strings.Join(lines, "") + "\n" + string(m.body) + "\n"
	if m.key != "" {
		text = "(key) " + m.key + "\n" + text
	}
	return text
}

// fromKafka reads the only message of a topic.
func (w *world) fromKafka(topic string) (only wire) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	client := w.client(kgo.ConsumeTopics(w.prefix + topic))
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, w.prefix+topic)
	require.NoError(w.t, err)
	n := 0
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	require.Equal(w.t, 1, n, topic)
	fetches := client.PollFetches(ctx)
	require.NoError(w.t, fetches.Err(), topic)
	m := fetches.Records()[0]
	only = wire{key: string(m.Key), headers: map[string]string{}, body: m.Value}
	for _, h := range m.Headers {
		require.NotContains(w.t, only.headers, h.Key, "twice")
		only.headers[h.Key] = string(h.Value)
	}
	return only
}

func (w *world) client(opts ...kgo.Opt) *kgo.Client {
	w.t.Helper()
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(dbtest.Environment(w.t, "WAYBILL_KAFKA")))...)
	require.NoError(w.t, err)
	return client
}

// fromNATS reads the only message of a subject.
func (w *world) fromNATS(subject string) wire {
	w.t.Helper()
	return w.allFromNATS(subject, 1)[0]
}

// allFromNATS reads the n messages of a subject.
func (w *world) allFromNATS(subject string, n int) (all []wire) {
	w.t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(w.nats.KeyFile())
	require.NoError(w.t, err)
	connection, err := natsgo.Connect(w.nats.URL(), key)
	require.NoError(w.t, err)
	defer connection.Close()
	streams, err := jetstream.New(connection)
	require.NoError(w.t, err)
	name, err := streams.StreamNameBySubject(w.t.Context(), subject)
	require.NoError(w.t, err)
	stream, err := streams.Stream(w.t.Context(), name)
	require.NoError(w.t, err)
	info, err := stream.Info(w.t.Context())
	require.NoError(w.t, err)
	require.EqualValues(w.t, n, info.State.Msgs, subject)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(w.t.Context(), seq)
		require.NoError(w.t, err)
		read := wire{headers: map[string]string{}, body: m.Data}
		for header, values := range m.Header {
			require.Len(w.t, values, 1)
			read.headers[header] = values[0]
		}
		all = append(all, read)
	}
	return all
}

func (w *world) deleteTopics() {
	client := w.client()
	defer client.Close()
	kafkatest.DeleteTopics(w.t, client, w.prefix)
}

// fromOwn is the message of an id as the context's own broker has it.
func (w *world) fromOwn(id string) string {
	w.t.Helper()
	c, err := w.nats.Consume(w.t.Context(), "own.ordering.order", "test")
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, c.Close(context.Background())) }()
	for {
		deliveries, err := c.Receive(w.t.Context(), 10)
		require.NoError(w.t, err)
		for _, d := range deliveries {
			if d.ID == id {
				return wire{headers: d.Headers, body: d.Body}.String()
			}
		}
	}
}
