package waybilltest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/waybilltest"
)

// onPostgres has kits of this test use PostgreSQL.
func onPostgres(t *testing.T) {
	t.Helper()
	dsn := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, dsn, "run scripts/test, or eval \"$(scripts/services up)\"")
	t.Setenv("WAYBILL_TEST_POSTGRES", dsn)
}

// What is sent can be read, whatever its envelope is.
func TestSent_EveryEnvelope(t *testing.T) { t.Parallel(); sends(t) }

func TestSent_OnPostgres(t *testing.T) { onPostgres(t); sends(t) }

func sends(t *testing.T) {
	t.Helper()
	k := waybilltest.New(t)
	lib := newLibrary(k.Units(libraryDomain, func(c *uow.Config) {
		for _, e := range []outbox.Envelope{outbox.Stripped, outbox.CloudEvents, outbox.CloudEventsBinary} {
			c.External = append(c.External, outbox.Target{Broker: string(e), Envelope: e, Extensions: []string{"region"}})
		}
	}))
	bil := newBilling(k.Units(billingDomain))
	k.Start(lib.context(), bil.context())
	origin := domain.Origin{TenantID: "acme", CorrelationID: "c1", Extensions: map[string]string{"region": "eu"}}
	require.NoError(t, lib.commands.Do(k.Context(origin), PlaceLoan{"l1"}))
	k.Settle()
	own := k.Sent("default", "library.loan")
	require.Len(t, own, 2)
	origin.CausationID = own[0].CausationID
	require.Equal(t, origin, own[0].Origin)
	placed := waybilltest.Decode[LoanPlaced](k, own[0])
	origin.TenantID = ""
	for _, partner := range lib.units.External() {
		sent := k.Sent(partner.Broker, "library.loan")
		require.Len(t, sent, 1, "what isn't published stays")
		require.Equal(t, placed, waybilltest.Decode[LoanPlaced](k, sent[0]))
		require.Equal(t, own[0].ID, sent[0].ID)
		require.Equal(t, own[0].Type, sent[0].Type)
		require.Equal(t, own[0].Time, sent[0].Time)
		require.Equal(t, "library", sent[0].Context)
		require.Equal(t, "l1", sent[0].AggregateID)
		require.Equal(t, "l1", sent[0].Key)
		require.Equal(t, origin, sent[0].Origin, partner.Envelope)
	}
	k.Published(lib.units, LoanPlaced{"l1", placed.At}, LoanConfirmed{"l1"})
	k.Published(lib.units)
	k.Published(bil.units, ChargePaid{"l1"})
	require.NoError(t, k.Broker("default").Publish(t.Context(), []broker.Message{{ID: "1", Topic: "other", Key: "k", Body: []byte("text")}}))
	require.Contains(t, failing(t, func(tb testing.TB) {
		tb.Helper()
		k.On(tb).Sent("default", "other")
	}), "message 1 is none of Waybill's")
	for name, want := range map[[2]string]string{
		{"partnr", "library.loan"}:   `no context that was started uses a broker "partnr": there are ["`,
		{"default", "library::loan"}: `broker "default" has no topic "library::loan": there are ["billing.charge"`,
	} {
		require.Contains(t, failing(t, func(tb testing.TB) {
			tb.Helper()
			k.On(tb).Sent(name[0], name[1])
		}), want)
	}
	require.Contains(t, failing(t, func(tb testing.TB) {
		tb.Helper()
		waybilltest.Decode[struct{ At int }](k.On(tb), own[0])
	}), "Library.LoanPlaced.v1 is no struct")
	k.On(t)
}

// S4-24.
func TestAdvance_S4_24_TimersDeadlinesAndNow(t *testing.T) { t.Parallel(); advances(t) }

func TestAdvance_OnPostgres(t *testing.T) { onPostgres(t); advances(t) }

func advances(t *testing.T) {
	t.Helper()
	k := waybilltest.New(t)
	w := start(k)
	w.bil.charge = func(context.Context, BillFee) error { return nil }
	before := k.Now()
	require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	require.NoError(t, w.lib.commands.Do(t.Context(), RemindLoan{"l1"}))
	w.Settle()
	require.Equal(t, before, k.Now(), "it stands")
	w.Advance(payWithin - time.Millisecond)
	require.Equal(t, "pending", w.lib.status(t, "l1"))
	w.Advance(time.Millisecond)
	require.Equal(t, "cancelled", w.lib.status(t, "l1"))
	require.Equal(t, before.Add(payWithin), k.Now())

	// On its way it stops at each timer, whose handler finds the time that it was set for.
	w.Advance(3 * 24 * time.Hour)
	loan, err := w.lib.loans.Get(t.Context(), "l1")
	require.NoError(t, err)
	require.Equal(t, 4, loan.Reads, "once by hand, and each of three days")
	sent := w.Sent("default", "library.loan")
	require.Len(t, sent, 2)
	placed, cancelled := waybilltest.Decode[LoanPlaced](k, sent[0]), waybilltest.Decode[LoanCancelled](k, sent[1])
	require.Equal(t, placed.At.Add(payWithin), cancelled.At)
	require.Equal(t, cancelled.At, sent[1].Time, "the event's own time")

	expired := new(command.ExpiredError)
	deadline := k.Now().Add(time.Hour)
	require.NotErrorAs(t, w.lib.commands.Do(t.Context(), CancelLoan{"l1"}, command.Before(deadline)), &expired)
	w.Advance(time.Hour + time.Millisecond)
	require.ErrorAs(t, w.lib.commands.Do(t.Context(), CancelLoan{"l1"}, command.Before(deadline)), &expired)
}

// So do deadlines of commands that come as messages.
func TestAdvance_OfWhatComesTooLate(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	bil := newBilling(k.Units(billingDomain))
	for i, id := range []string{"l1", "l2"} {
		require.NoError(t, bil.units.Do(t.Context(), func(ctx context.Context) error {
			return command.Send(ctx, BillFee{id}, command.Before(domain.Now(ctx).Add(time.Hour+time.Duration(i)*time.Hour)))
		}))
	}
	k.Advance(90 * time.Minute)
	k.Start(bil.context())
	k.Settle()
	count := bil.commands.Counts()[0]
	require.EqualValues(t, 1, count.Done)
	require.EqualValues(t, 1, count.Expired)
}

// A test's own clock is left to it, and without an engine there is nothing to settle.
func TestAdvance_WithoutAnEngine(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	units := k.Units(libraryDomain)
	now := k.Now()
	k.Advance(time.Hour)
	require.Equal(t, now.Add(time.Hour), domain.Now(k.Context(domain.Origin{})))
	mine := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	require.NoError(t, units.Do(domain.WithClock(t.Context(), func() time.Time { return mine }), func(ctx context.Context) error {
		require.Equal(t, mine, domain.Now(ctx))
		return nil
	}))
	require.Contains(t, failing(t, func(tb testing.TB) { waybilltest.New(tb).Advance(-1) }), "time doesn't go back")
	require.Contains(t, failing(t, func(tb testing.TB) { waybilltest.New(tb).Settle() }), "call Start first")
}

// A second Start is a restart after kill -9: what was committed is there, and no more.
func TestStart_Restart(t *testing.T) { t.Parallel(); restarts(t) }

func TestStart_RestartOnPostgres(t *testing.T) { onPostgres(t); restarts(t) }

func restarts(t *testing.T) {
	t.Helper()
	k := waybilltest.New(t)
	w := start(k)
	entered, ended := make(chan struct{}), make(chan struct{})
	w.lib.paid = func(ctx context.Context, _ FeePaid) error {
		defer close(ended)
		if _, err := uow.DB(ctx); err != nil { // it has begun, and holds the writer
			return err
		}
		close(entered)
		<-ctx.Done()
		return w.lib.loans.Save(context.WithoutCancel(ctx), &Loan{Root: domain.RootWithID("more")})
	}
	require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	<-entered
	old := w
	w = start(k)
	<-ended // the dead one has noticed
	require.Error(t, old.lib.commands.Do(t.Context(), PlaceLoan{"l2"}), "a dead process does nothing")
	w.Settle()
	require.Equal(t, "active", w.lib.status(t, "l1"))
	_, err := w.lib.loans.Get(t.Context(), "more")
	require.Error(t, err)

	// With the same units, too.
	for range 3 {
		k.Start(w.lib.context(), w.bil.context())
		require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l" + time.Now().String()}))
		w.Settle()
	}
	require.Len(t, w.Sent("default", "billing.charge"), 4)
}

func TestSettle_ParkedFailsAtOnce(t *testing.T) {
	t.Parallel()
	began := time.Now()
	said := failing(t, func(tb testing.TB) {
		w := start(waybilltest.New(tb).Patience(time.Hour))
		w.bil.charge = func(context.Context, BillFee) error { return errors.New("no money") }
		require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
		w.Settle()
	})
	require.Contains(t, said, "call ExpectParked if the test is about that")
	require.Contains(t, said, `dead letter of subscription "billing.commands", Billing.BillFee.v1`)
	require.Contains(t, said, `of key "l1": parked (failed) after 8 attempts: no money`)
	require.Less(t, time.Since(began), time.Minute)

	w := start(waybilltest.New(t))
	w.ExpectParked()
	w.bil.charge = func(context.Context, BillFee) error { return subscription.Park(errors.New("no money")) }
	require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
	w.Settle()
	letters := w.Parked(w.bil.units)
	require.Len(t, letters, 1)
	require.Equal(t, "no money", letters[0].Error)
	require.Empty(t, w.Parked(w.lib.units))
	// What waits behind it waits for somebody, too.
	w.Deliver(w.bil.units, "", BillFee{"l1"})
	w.Settle()
	require.Len(t, w.Parked(w.bil.units), 2)
}

func TestSettle_ARowThatIsGivenUpFailsAtOnce(t *testing.T) {
	t.Parallel()
	require.Contains(t, failing(t, func(tb testing.TB) {
		w := start(waybilltest.New(tb))
		w.Broker("partner").FailWhere(refuse)
		require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
		w.Settle()
	}), `Library.LoanPlaced.v1 of library::loan-l1 for broker "partner": abandoned after 1 attempts; the last error: nobody wants it`)
}

// S2-50: tests wait until nothing is left to do. When the time is up Settle says what is.
func TestSettle_S2_50_SaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		with func(t *testing.T, w *world)
		want string
	}{
		"a row of the outbox": {
			func(_ *testing.T, w *world) { w.Broker("default").SetOutage(true) },
			`Library.LoanPlaced.v1 of library::loan-l1 for broker "default": `,
		},
		"a message": {
			func(_ *testing.T, w *world) {
				w.lib.paid = func(context.Context, FeePaid) error {
					return subscription.RetryAfter(errors.New("not yet"), time.Minute)
				}
			},
			`subscription "library.charges": 1 messages are not handled yet; the last error: not yet; it has Billing.ChargePaid.v1 `,
		},
		"a handler that hangs": {
			func(_ *testing.T, w *world) {
				w.lib.paid = func(ctx context.Context, _ FeePaid) error {
					<-ctx.Done()
					return ctx.Err()
				}
			},
			`subscription "library.charges": 1 messages are not handled yet, and 1 of them are with a handler that hasn't returned, or behind such a one: look for what it waits for; it has Billing.ChargePaid.v1 `,
		},
		"a timer": {
			func(t *testing.T, w *world) {
				t.Helper()
				at := w.Now().Add(time.Second)
				holdWriter(t, w.lib.units, func(ctx context.Context) error { return command.Schedule(ctx, "late", at, CancelLoan{"l1"}) })
				w.Advance(time.Second)
			},
			`timer "late" of library::commands, Library.CancelLoan.v1: due since `,
		},
		"no end": {
			func(_ *testing.T, w *world) {
				w.bil.charge = func(ctx context.Context, c BillFee) error { return command.Send(ctx, c) }
			},
			"hasn't settled within 3s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := failing(t, func(tb testing.TB) {
				w := start(waybilltest.New(tb).Patience(time.Minute))
				w.Settle() // Its subscriptions are there: they need the writer for that.
				w.Patience(3 * time.Second)
				c.with(t, w)
				if name != "a timer" {
					require.NoError(t, w.lib.commands.Do(t.Context(), PlaceLoan{"l1"}))
				}
				w.Settle()
			})
			require.Contains(t, said, "hasn't settled within 3s")
			require.Contains(t, said, c.want)
		})
	}
}

// holdWriter does something, and then keeps all others from writing until the test ends.
func holdWriter(t *testing.T, units *uow.Manager, before func(ctx context.Context) error) {
	t.Helper()
	require.NoError(t, units.Do(t.Context(), before))
	held, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = units.Do(context.Background(), func(ctx context.Context) error {
			_, err := uow.DB(ctx)
			close(held)
			<-release
			return err
		})
	}()
	t.Cleanup(func() {
		close(release)
		<-done
	})
	<-held
}

func refuse(broker.Message) error {
	return broker.Scoped(broker.Permanent, broker.ScopeRow, errors.New("nobody wants it"))
}
