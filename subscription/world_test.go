package subscription_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// OrderPlaced and OrderCancelled are ordering's events, as shipping reads them.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Note    string `json:"note"`
}

type OrderCancelled struct {
	OrderID string `json:"order_id"`
}

type Shipment struct {
	domain.Root
	Note string
}

type ShipmentPrepared struct {
	ShipmentID string `json:"shipment_id"`
}

var shipping = domain.MustNew("shipping",
	domain.Aggregate[*Shipment]("shipment", domain.Event[ShipmentPrepared](domain.Published())),
	domain.Foreign[OrderPlaced]("Ordering.OrderPlaced.v1"),
	domain.Foreign[OrderCancelled]("Ordering.OrderCancelled.v2"),
)

const (
	placedV1 = "Ordering.OrderPlaced.v1"
	category = "ordering::order"
	topic    = "ordering.order"
)

// databases runs a test on an empty database of each kind, and beside others: it
// waits more than it works.
func databases(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	for name, open := range map[string]func(testing.TB) uow.Provider{"postgres": openPostgres, "sqlite": openSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, open(t)))
		})
	}
}

func openPostgres(t testing.TB) uow.Provider {
	p, cfg := dbtest.Postgres(t, func(c *postgres.Config) { c.MaxConns = 24 })
	return owner{p, cfg}
}

// owner is PostgreSQL as the role that makes the tables. Streams run as another one.
type owner struct {
	uow.Provider
	cfg postgres.Config
}

func openSQLite(t testing.TB) uow.Provider {
	return dbtest.SQLite(t, dbtest.With(t, rights.Features()...))
}

// world is a database with the tables, a broker, and shipping's units of work.
type world struct {
	t        testing.TB
	provider uow.Provider // with an engine's rights
	owner    uow.Provider // of the tables
	units    *uow.Manager
	broker   *memory.Broker
	logs     *logs
}

func newWorld(t testing.TB, p uow.Provider) *world {
	t.Helper()
	w := &world{t: t, provider: p, owner: p, broker: memory.New(memory.Config{}), logs: &logs{}}
	require.NoError(t, outboxdb.Migrate(t.Context(), p.DB(), 0))
	for _, set := range rights.Features() {
		require.NoError(t, set.Up(t.Context(), p.DB()))
	}
	if o, ok := p.(owner); ok {
		w.provider = rightstest.As(t, o.Provider, o.cfg, migrate.Engine, rights.Features()...)
	}
	n := "INTEGER PRIMARY KEY"
	if w.isPostgres() {
		n = "bigserial"
	}
	w.exec("CREATE TABLE effects (n " + n + ", message_id text, key text, note text)")
	w.units = w.unitsOn(w.provider)
	return w
}

func (w *world) unitsOn(p uow.Provider) *uow.Manager {
	w.t.Helper()
	units, err := uow.New(uow.Config{Domain: shipping, Providers: []uow.Provider{p}})
	require.NoError(w.t, err)
	return units
}

func (w *world) isPostgres() bool { return w.provider.DB().Dialect().Name() == dialect.PG }

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.owner.DB().ExecContext(w.t.Context(), query, args...)
	require.NoError(w.t, err)
}

// effects are the notes of a key's effects, in the order in which they happened.
func (w *world) effects(key string) []string {
	var notes []string
	err := w.provider.Reader().NewRaw("SELECT note FROM effects WHERE key = ? ORDER BY n", key).Scan(context.Background(), &notes)
	require.NoError(w.t, err)
	return notes
}

func (w *world) count(query string, args ...any) int {
	var n int
	require.NoError(w.t, w.provider.Reader().NewRaw(query, args...).Scan(context.Background(), &n))
	return n
}

func (w *world) inbox() int       { return w.count("SELECT count(*) FROM inbox") }
func (w *world) deadLetters() int { return w.count("SELECT count(*) FROM dead_letters") }
func (w *world) allEffects() int  { return w.count("SELECT count(*) FROM effects") }

// stream handles OrderPlaced by one row in effects.
func (w *world) stream() subscription.Stream {
	return w.streamOf(subscription.On(func(ctx context.Context, e OrderPlaced) error { return effect(ctx, e) }))
}

// streamOf tries each message as often as it takes.
func (w *world) streamOf(handlers ...subscription.Handler) subscription.Stream {
	return subscription.Stream{
		Name: "shipping", Category: category, Handlers: handlers, Units: w.units,
		Backoff: time.Millisecond, MaxAttempts: 1 << 20, OnParked: subscription.Skip,
	}
}

func effect(ctx context.Context, e OrderPlaced) error {
	m, ok := domain.MetadataFrom(ctx)
	if !ok {
		return fmt.Errorf("no metadata")
	}
	db, err := uow.DB(ctx)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "INSERT INTO effects (message_id, key, note) VALUES (?, ?, ?)", m.ID, e.OrderID, e.Note)
	return err
}

// start runs a stream until the test ends, or until stop is called.
func (w *world) start(s subscription.Stream, b broker.Broker) (r *subscription.Runner, stop func()) {
	w.t.Helper()
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: b, Logger: slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	require.NoError(w.t, err)
	require.NoError(w.t, r.Start(w.t.Context()))
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(w.t, r.Stop(ctx))
		require.Zero(w.t, r.Status().InFlight)
		require.False(w.t, r.Status().Running)
	})
	w.t.Cleanup(stop)
	return r, stop
}

func (w *world) publish(messages ...broker.Message) {
	w.t.Helper()
	require.NoError(w.t, w.broker.Publish(w.t.Context(), messages))
}

func (w *world) until(condition func() bool, what string, args ...any) {
	w.t.Helper()
	waittest.Until(w.t, condition, append([]any{what}, args...)...)
}

// acknowledged says that nothing is left to do for a group.
func (w *world) acknowledged(group string) func() bool {
	return func() bool { return w.broker.Unacknowledged(topic, group) == 0 }
}

// placed is the message of an order, as ordering publishes it.
func placed(order, note string) broker.Message {
	return message(uuid.Must(uuid.NewV7()).String(), placedV1, order, fmt.Sprintf(`{"order_id":%q,"note":%q}`, order, note))
}

func message(id, typ, key, data string) broker.Message {
	body := fmt.Sprintf(`{"data":%s,"metadata":{"headers":{"id":%q,"type":%q,"time":"2026-01-02T03:04:05.678901Z","stream":%q,"traceparent":null},`+
		`"envelope":{"specversion":"1.0"},"domain":{"context":"ordering","kind":"EVENT","aggregate":"order","aggregate_id":%q,"stream_category":"ordering::order","version":1,"sequence_id":"1.1","correlation_id":null,"causation_id":null},"extensions":{}}}`,
		data, id, typ, "ordering::order-"+key, key)
	return broker.Message{ID: id, Topic: topic, Key: key, Headers: map[string]string{"id": id, "type": typ, "content-type": "application/json"}, Body: []byte(body)}
}

func orders(n int) []broker.Message {
	all := make([]broker.Message, n)
	for i := range all {
		all[i] = placed(fmt.Sprintf("o-%d", i), "")
	}
	return all
}

// logs collects lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines are those that contain text.
func (l *logs) lines(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
