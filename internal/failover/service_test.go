package failover_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type parcel struct {
	domain.Root

	Note string
}

type parcelSent struct{ Note string }

// service is a context on a database, with a broker of its own.
type service struct {
	t       *testing.T
	db      uow.Provider
	units   *uow.Manager
	parcels *repository.Repository[*parcel]
	broker  *memory.Broker
	engine  *engine.Engine
	lease   time.Duration
	logs    logtest.Log
}

// told waits until the log has it.
func (s *service) told(what string) {
	s.t.Helper()
	waittest.Until(s.t, func() bool { return s.logs.Has(what) }, "the log says %q", what)
}

func newService(t *testing.T, db uow.Provider) *service {
	t.Helper()
	d := domain.MustNew("post", domain.Aggregate[*parcel]("parcel", domain.Event[parcelSent]()))
	units, err := uow.New(uow.Config{Domain: d, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))
	return &service{t: t, db: db, units: units, parcels: repository.New[*parcel](units), broker: memory.New(memory.Config{}), lease: time.Second}
}

func openPostgres(t *testing.T, dsn string) uow.Provider {
	t.Helper()
	db, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func (s *service) save(note string) {
	s.t.Helper()
	p := &parcel{Root: domain.NewRoot(), Note: note}
	p.Raise(parcelSent{note})
	require.NoError(s.t, s.parcels.Save(s.t.Context(), p))
}

// run starts an engine. The function that it returns ends it.
func (s *service) run(on outbox.OnFailover) (stop func()) {
	s.t.Helper()
	e, err := engine.New(engine.Config{
		Units: []*uow.Manager{s.units}, Brokers: map[string]broker.Broker{"default": s.broker},
		Outbox: outbox.Config{Lease: s.lease, PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond, OnFailover: on},
		Server: engine.Server{Addr: "127.0.0.1:0"}, Logger: slog.New(slog.NewTextHandler(&s.logs, nil)),
	})
	require.NoError(s.t, err)
	require.NoError(s.t, e.Start(s.t.Context()))
	s.engine = e
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			require.NoError(s.t, e.Stop(ctx))
		}
	}
	s.t.Cleanup(stop)
	return stop
}

// published are the notes that the broker has got.
func (s *service) published() (notes []string) {
	for _, m := range s.broker.Messages("post.parcel") {
		var body struct{ Data parcelSent }
		require.NoError(s.t, json.Unmarshal(m.Body, &body))
		notes = append(notes, body.Data.Note)
	}
	return notes
}

func (s *service) publishes(note string) {
	s.t.Helper()
	waittest.Until(s.t, func() bool { return slices.Contains(s.published(), note) }, "the event %q is published", note)
}

// refuses waits until health says that nothing is published, and returns its text.
func (s *service) refuses() (text string) {
	s.t.Helper()
	waittest.Until(s.t, func() bool {
		for _, r := range s.reasons() {
			if r.Code == "database_moved" {
				text = r.Text
			}
		}
		return text != ""
	}, "health says that it is another database")
	return text
}

type reason struct{ Code, State, Text string }

func (s *service) reasons() []reason {
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.engine.Addr()+"/api/health", nil)
	require.NoError(s.t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	var answer struct{ Reasons []reason }
	require.NoError(s.t, json.NewDecoder(response.Body).Decode(&answer))
	http.DefaultClient.CloseIdleConnections()
	return answer.Reasons
}

// silent is that rows wait, and none of them was sent. Others may wait, too: what was settled
// in the last half second before a crash.
func (s *service) silent(notes ...string) {
	s.t.Helper()
	var waiting int
	require.NoError(s.t, s.db.DB().NewRaw("SELECT count(*) FROM outbox_queue").Scan(s.t.Context(), &waiting))
	require.GreaterOrEqual(s.t, waiting, len(notes))
	for _, n := range notes {
		require.NotContains(s.t, s.published(), n)
	}
}

// number is the highest that a row has.
func (s *service) number() (seq int64) {
	s.t.Helper()
	require.NoError(s.t, s.db.DB().NewRaw("SELECT max(seq) FROM outbox_messages").Scan(s.t.Context(), &seq))
	return seq
}

func (s *service) accept() string {
	s.t.Helper()
	moved, err := outboxdb.New(s.db.DB(), s.db.Reader()).AcceptIdentity(s.t.Context(), "test")
	require.NoError(s.t, err)
	return moved
}
