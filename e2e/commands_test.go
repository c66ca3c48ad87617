package e2e

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Remind is a command of lending, a context that does nothing but this.
type Remind struct {
	LoanID string `json:"loan_id"`
}

var lending = domain.MustNew("lending", domain.Command[Remind](domain.KeyedBy("loan_id")))

// desk is lending with a database of its own.
type desk struct {
	t        *testing.T
	db       uow.Provider
	units    *uow.Manager
	handlers *command.Handlers
}

func openDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t}
	var err error
	d.db, err = sqlite.Open(t.Context(), sqlite.Config{Name: "default", Path: filepath.Join(t.TempDir(), "lending.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.db.Close()) })
	d.units, err = uow.New(uow.Config{Domain: lending, Providers: []uow.Provider{d.db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), d.units))
	d.handlers = command.Must(command.Config{
		Units: d.units, Queue: subscription.Stream{MaxAttempts: 1},
		Handlers: []command.Handler{command.On(func(_ context.Context, c Remind) error {
			switch c.LoanID {
			case "loan-nowhere":
				return errors.New(hostile)
			case "loan-returned":
				return command.Refuse(errors.New("it was returned"))
			}
			return nil
		})},
	})
	return d
}

func (d *desk) schedule(loan string, at time.Time) {
	d.t.Helper()
	ctx := domain.WithOrigin(d.t.Context(), domain.Origin{CorrelationID: "visit-" + loan})
	require.NoError(d.t, d.units.Do(ctx, func(ctx context.Context) error {
		return command.Schedule(ctx, loan, at, Remind{loan})
	}))
}

// serve serves what an engine shows until the test ends.
func (d *desk) serve(e *engine.Engine, err error) *service {
	d.t.Helper()
	require.NoError(d.t, err)
	require.NoError(d.t, e.Start(d.t.Context()))
	d.t.Cleanup(func() { require.NoError(d.t, e.Stop(context.Background())) })
	s := &service{t: d.t, handler: e.Handler()}
	s.listen("127.0.0.1:0")
	return s
}

var guard = engine.Server{Token: token, Tokens: []engine.Token{{Name: "reader", Role: engine.RoleRead, Token: reading}}}

// run is lending at work.
func (d *desk) run() *service {
	d.t.Helper()
	return d.serve(engine.New(engine.Config{
		Contexts: []engine.Context{{Commands: d.handlers}}, Brokers: map[string]broker.Broker{"default": memory.New(memory.Config{})},
		Outbox: outbox.Config{PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond},
		Server: guard, Logger: slog.New(slog.DiscardHandler),
	}))
}

// While no engine runs, timers are late: whoever looks sees which, since when, and what
// helps.
func TestObservatory_TimersThatAreLate(t *testing.T) {
	d := openDesk(t)
	d.schedule("loan-late", time.Now().Add(-90*time.Minute))
	d.schedule("loan-in-time", time.Now().Add(26*time.Hour))
	s := d.serve(engine.NewObservatory(engine.ObservatoryConfig{Providers: []uow.Provider{d.db}, Server: guard}))
	b := open(t)
	b.open(s, "#/waiting")
	b.shows(`[data-card="timers-waiting"] dd`, "2")
	b.shows(`[data-card="timers-due"] dd`, "1")
	b.shows(`[data-card="timers-late"] dd`, "1 h 30 min")
	b.shows(`tbody tr:first-child[data-state="bad"]`, "loan-late")
	b.shows("tbody tr:first-child", "1 h 30 min ago")
	b.shows("tbody tr:last-child", "in 1 d 1 h")
	b.shows(".reasons", "a waiting timer was due 1h30m")
	b.shows(".reasons", "Any engine of the database sends them: check that one runs.")
	b.holds(`document.querySelectorAll('.reasons li').length === 1`)
	b.picture("observatory-waiting")
	wide(b)
	b.fill("#field-owner", "lending::commands")
	b.press("\r")
	b.holds(`location.hash.includes('owner=lending')`)
	b.size(390, 780)
	b.picture("observatory-waiting-phone")
	wide(b)
	b.well()
}

// A timer that can't be sent stands out, with why and what helps.
func TestObservatory_ATimerThatIsBroken(t *testing.T) {
	d := openDesk(t)
	d.schedule("loan-broken", time.Now().Add(time.Hour))
	_, err := d.db.DB().ExecContext(t.Context(), "UPDATE timers SET message = '{}'")
	require.NoError(t, err)
	d.schedule("loan-in-time", time.Now().Add(26*time.Hour))
	_, err = d.db.DB().ExecContext(t.Context(), "UPDATE timers SET available_at = set_at WHERE name = 'loan-broken'")
	require.NoError(t, err)
	s := d.run()
	b := open(t)
	b.open(s, "#/waiting")
	b.shows(`[data-card="timers-broken"][data-alarm="true"] dd`, "1")
	b.shows(`tbody tr[data-state="bad"]`, "its message is not what was stored")
	b.shows(`tbody tr[data-state="bad"]`, "loan-broken")
	b.shows(".reasons", "1 timer can't be sent and is set aside")
	b.shows(".reasons", "waybill timers fire --status broken")
	wide(b)
	b.click(`[data-card="timers-broken"] a`)
	b.holds(`document.querySelectorAll('tbody tr').length === 1`)
	b.well()
}

// A command that fails shows with its words and its dead letter; a timer whose command
// that was stands as sent, and leads there. A reader sees neither whose it is nor the words.
func TestObservatory_CommandsAndWhatBecameOfThem(t *testing.T) {
	d := openDesk(t)
	s := d.run()
	d.schedule("loan-nowhere", time.Now())
	d.schedule("loan-1", time.Now())
	require.NoError(t, d.handlers.Do(t.Context(), Remind{"loan-2"}))
	require.Error(t, d.handlers.Do(t.Context(), Remind{"loan-returned"}))
	require.Error(t, d.handlers.Do(t.Context(), Remind{"loan-3"}, command.Before(time.Now().Add(-time.Hour))))
	b := open(t)
	b.open(s, "#/commands")
	b.holds(`[...document.querySelectorAll('tbody tr:first-child td')].slice(1, 6).map((e) => e.innerText).join() === '2,1,1,1,0'`)
	b.shows(`tbody tr[data-state="bad"]`, "no address <img src=x")
	b.shows(`[aria-label="Queues"] tbody tr[data-state="bad"]`, "lending.commands")
	b.holds(`[...document.querySelectorAll('td[data-label="Took, since the start"]')].some((e) => / ms/.test(e.innerText))`)
	b.picture("observatory-commands")
	wide(b)
	b.click(`a[href="#/dead-letters?subscription=lending.commands&type=Lending.Remind.v1"]`)
	b.shows("#total", "1 message found.")

	b.press("6")
	b.shows(`[data-card="timers-sent"] dd`, "1")
	b.shows("tbody", "sent")
	b.click(`tbody a[href^="#/messages/"]`)
	b.shows(".journey", "Dead letter of lending.commands")
	b.press("7")
	b.shows("h1", "Commands")
	b.size(390, 780)
	wide(b)
	b.well()

	r := open(t)
	r.visit(s, "#/waiting")
	r.give(reading)
	r.shows("tbody", "[hidden]")
	r.press("7")
	r.shows("tbody", "[hidden; a token of role operate shows it")
	for _, secret := range []string{"loan-nowhere", "no address"} {
		require.NotContains(t, r.text("body"), secret)
	}
	r.well()
}
