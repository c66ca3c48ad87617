package command_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func TestNew_AllMistakesTogether(t *testing.T) {
	t.Parallel()
	units, err := uow.New(uow.Config{Domain: library, Providers: []uow.Provider{openSQLite(t)}})
	require.NoError(t, err)
	loans := repository.New[*Loan](units)
	_, err = command.New(command.Config{
		Units: units, KeyRetention: -1, Queue: subscription.Stream{Name: "mine"},
		Handlers: []command.Handler{
			{},
			command.Create(loans, Place),
			command.Create(loans, Place),
			command.On[ConfirmLoan](nil),
			command.On(func(context.Context, ChargeFee) error { return nil }),
			command.On(func(context.Context, BillFee) error { return nil }),
			command.On(func(context.Context, CountLoan) error { return nil }, command.Timeout(-1)),
			command.On(func(context.Context, AskFee) error { return nil }, command.Retries(-2)),
			command.On(func(context.Context, Close) error { return nil }, command.Retries(1), nil),
		},
	})
	for _, part := range []string{
		"KeyRetention is -1ns", "Config.Queue tunes", "Handlers[0]: it is empty", "Handlers[2]: command_test.PlaceLoan has a handler already",
		"Handlers[3]: command_test.ConfirmLoan: its function is nil", "Handlers[4]: command_test.ChargeFee is a command for context billing",
		"Handlers[5]: domain library: command_test.BillFee is not declared; add domain.Command", "Handlers[6]: command_test.CountLoan: Timeout is -1ns",
		"Handlers[7]: command_test.AskFee: Retries is -2", "Handlers[8]: command_test.Close: its option 2 is nil: take it out",
		"Library.ConfirmLoan.v1 has no handler: add command.On",
	} {
		require.ErrorContains(t, err, part)
	}
	require.Panics(t, func() { command.Must(command.Config{}) })

	var none *repository.Repository[*Loan] // such as one that is made further below
	_, err = command.New(command.Config{Units: units, Handlers: []command.Handler{command.Create(none, Place), command.Update(none, (*Loan).Confirm)}})
	require.ErrorContains(t, err, "Handlers[0]: command_test.PlaceLoan: its repository or its constructor is nil")
	require.ErrorContains(t, err, "Handlers[1]: command_test.ConfirmLoan: its repository or its function is nil")
}

func TestDo_TheEffectIsCommittedAndTheCommandIsItsCause(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		ctx := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c1", TenantID: "acme"})
		require.NoError(t, w.lib.Do(ctx, PlaceLoan{"l1", "ann"}))
		require.NoError(t, w.lib.Do(ctx, ConfirmLoan{"l1"}))
		l, err := w.loans.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.Equal(t, "active", l.Status)
		require.Equal(t, 2, w.count("SELECT count(*) FROM outbox WHERE correlation_id = 'c1' AND tenant_id = 'acme' AND causation_id IS NOT NULL"))

		// An error leaves nothing, and is the domain's own.
		err = w.lib.Do(ctx, ConfirmLoan{"l1"})
		require.ErrorIs(t, err, errNotPending)
		require.True(t, command.Refused(err))
		missing := new(repository.NotFoundError)
		require.ErrorAs(t, w.lib.Do(ctx, ConfirmLoan{"none"}), &missing)
		require.ErrorContains(t, w.lib.Do(ctx, ConfirmLoan{}), "has no key")
		require.ErrorContains(t, w.lib.Do(ctx, ChargeFee{"l1"}), "is for context billing, which handles it: send it there with command.Send")
		require.ErrorContains(t, w.lib.Do(ctx, 7), "int is not declared")
		require.Equal(t, 2, w.count("SELECT count(*) FROM outbox"))
		got := counted(w.lib, "ConfirmLoan")
		require.Equal(t, []int64{1, 1, 1}, []int64{got.Done, got.Refused, got.Failed})
		require.Contains(t, got.LastFailure.Error, "no loan has id none")
		require.WithinDuration(t, time.Now(), got.LastFailure.At, time.Minute)
		require.EqualValues(t, 3, got.Took.Count, "each time that it ran")
		require.GreaterOrEqual(t, got.Lately.P99, got.Lately.P50)
		require.NotNil(t, got.Ever)
		require.Equal(t, command.Count{Command: "CountLoan", Type: "Library.CountLoan.v1", Took: counted(w.lib, "CountLoan").Took}, counted(w.lib, "CountLoan"))
	})
}

// N3, N4: a client repeats its request while a build is deployed whose command has more
// fields, in another order. It is the same request, to either build.
func TestOnce_N3_ARequestIsKnownToABuildWithMoreFields(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		before := PlaceLoan{"l1", "ann"}
		type PlaceLoan struct {
			Member string   `json:"member"`
			Days   int      `json:"days"`
			Note   *string  `json:"note"`
			Tags   []string `json:"tags"`
			From   struct {
				Branch string `json:"branch"`
			} `json:"from"`
			LoanID string `json:"loan_id"`
		}
		units, err := uow.New(uow.Config{Providers: []uow.Provider{w.db}, Domain: domain.MustNew("library", domain.Command[PlaceLoan](domain.KeyedBy("loan_id")))})
		require.NoError(t, err)
		calls := 0
		later := command.Must(command.Config{Units: units, Handlers: []command.Handler{command.On(func(context.Context, PlaceLoan) error { calls++; return nil })}})

		require.NoError(t, w.lib.Do(t.Context(), before, command.Once("first")))
		require.NoError(t, later.Do(t.Context(), PlaceLoan{LoanID: "l1", Member: "ann"}, command.Once("first")))
		require.Zero(t, calls, "it was done")
		reused := new(command.KeyReusedError)
		require.ErrorAs(t, later.Do(t.Context(), PlaceLoan{LoanID: "l1", Member: "ann", Days: 3}, command.Once("first")), &reused)

		require.NoError(t, later.Do(t.Context(), PlaceLoan{LoanID: "l2", Member: "ann"}, command.Once("second")))
		require.Equal(t, 1, calls)
		before.LoanID = "l2"
		require.NoError(t, w.lib.Do(t.Context(), before, command.Once("second")))
		_, err = w.loans.Get(t.Context(), "l2")
		missing := new(repository.NotFoundError)
		require.ErrorAs(t, err, &missing, "the older build has not done it again")

		// What builds of before have stored is known as well.
		text, err := json.Marshal(before)
		require.NoError(t, err)
		_, err = w.db.DB().NewRaw("UPDATE command_keys SET digest = ? WHERE key = 'second'", fmt.Sprintf("%x", sha256.Sum256(text))).Exec(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.lib.Do(t.Context(), before, command.Once("second")))
	})
}

func TestDo_JoinsTheUnitOfItsContext(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		broken := errors.New("broken")
		err := w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.lib.Do(ctx, PlaceLoan{"l1", "ann"}))
			return broken
		})
		require.ErrorIs(t, err, broken)
		require.Zero(t, w.count("SELECT count(*) FROM documents"))
		err = w.units.Do(t.Context(), func(ctx context.Context) error { return w.lib.Do(ctx, PlaceLoan{"l1", "ann"}, command.Once("k")) })
		require.ErrorContains(t, err, "is done inside a unit of work")
	})
}

// N6: many clients change one aggregate at a time, and none of them fails.
func TestDo_N6_SixteenClientsOnOneAggregate(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range 10 {
					if err := w.lib.Do(t.Context(), CountLoan{"l1"}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		l, err := w.loans.Get(t.Context(), "l1")
		require.NoError(t, err)
		require.Equal(t, 160, l.Count)
	})
}

// F-60: also without a tenant.
func TestOnce_OneOfManyTakesEffectAndAllGetItsResult(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				fee, err := command.Call[int](t.Context(), w.lib, AskFee{"l1"}, command.Once("request-1"))
				if err != nil || fee != 7 {
					t.Errorf("%d, %v", fee, err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, w.handled.Load())
		require.Equal(t, 1, w.count("SELECT count(*) FROM outbox"))

		// Another command under the key is refused, and so is one of another tenant not.
		reused := new(command.KeyReusedError)
		_, err := command.Call[int](t.Context(), w.lib, AskFee{"l2"}, command.Once("request-1"))
		require.ErrorAs(t, err, &reused)
		other := domain.WithOrigin(t.Context(), domain.Origin{TenantID: "acme"})
		_, err = command.Call[int](other, w.lib, AskFee{"l2"}, command.Once("request-1"))
		require.NoError(t, err)

		// What failed has used up nothing.
		require.Error(t, w.lib.Do(t.Context(), PlaceLoan{"l3", ""}, command.Once("request-2")))
		require.NoError(t, w.lib.Do(t.Context(), PlaceLoan{"l3", "ann"}, command.Once("request-2")))
		require.NoError(t, w.lib.Do(t.Context(), PlaceLoan{"l3", "ann"}, command.Once("request-2")))

		_, err = command.Call[string](t.Context(), w.lib, AskFee{"l1"})
		require.ErrorContains(t, err, "the handler returns int, but string was requested")
		require.ErrorContains(t, w.lib.Do(t.Context(), AskFee{"l1"}, command.Once(strings.Repeat("k", 2000))), "has 2000 bytes")
	})
}

// Who asks again with the key, as after an unknown commit, hears what became of the command,
// also when its deadline is over by then. The handler isn't called for one that wasn't done.
func TestOnce_WhatWasDoneInTimeIsKnownAfterTheDeadline(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		deadline := time.Now().Add(time.Hour)
		before := func(at time.Time, key string) (int, error) {
			return command.Call[int](domain.WithClock(t.Context(), func() time.Time { return at }), w.lib, AskFee{"l1"}, command.Once(key), command.Before(deadline))
		}
		_, err := before(deadline, "k")
		require.NoError(t, err)
		fee, err := before(deadline.Add(time.Second), "k")
		require.NoError(t, err)
		require.Equal(t, 7, fee)

		expired := new(command.ExpiredError)
		_, err = before(deadline.Add(time.Second), "other")
		require.ErrorAs(t, err, &expired)
		require.EqualValues(t, 1, w.handled.Load())
		require.Equal(t, 1, w.count("SELECT count(*) FROM command_keys"), "and has used up nothing")
		require.EqualValues(t, 1, counted(w.lib, "AskFee").Expired)
		require.Zero(t, counted(w.lib, "AskFee").Failed)
	})
}

// A request is repeated across a deployment in which its handler came to return something:
// what was done returned nothing, and isn't done again.
func TestOnce_N3_ABuildWhoseHandlerReturnedNothing(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		require.NoError(t, w.bil.Do(t.Context(), Close{"l1"}, command.Once("k")))
		after := command.Must(command.Config{Units: w.billed, Handlers: []command.Handler{
			command.On(func(context.Context, BillFee) error { return nil }),
			command.Returns(func(context.Context, Close) (int, error) { return 7, nil }),
		}})
		require.NoError(t, after.Do(t.Context(), Close{"l1"}, command.Once("k")))
		answer, err := after.Answer(t.Context(), Close{"l1"}, command.Once("k"))
		require.NoError(t, err)
		require.Nil(t, answer)
		_, err = command.Call[int](t.Context(), after, Close{"l1"}, command.Once("k"))
		require.ErrorContains(t, err, "it is done, under its idempotency key, and the handler of that build returned nothing")
	})
}

func TestOnce_KeysAreForgottenWhenTheirTimeIsOver(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		short, err := command.New(command.Config{Units: w.billed, KeyRetention: time.Nanosecond, Handlers: []command.Handler{
			command.On(func(context.Context, BillFee) error { return nil }),
			command.On(func(context.Context, Close) error { return nil }),
		}})
		require.NoError(t, err)
		require.NoError(t, short.Do(t.Context(), BillFee{"a"}, command.Once("a")))
		require.NoError(t, w.lib.Do(t.Context(), PlaceLoan{"b", "ann"}, command.Once("b")))
		w.until(func() bool {
			_, err := command.PurgeKeys(t.Context(), w.db.DB(), 10)
			require.NoError(t, err)
			return w.count("SELECT count(*) FROM command_keys") == 1
		}, "the one whose time is over is gone")
		require.Equal(t, 1, w.count("SELECT count(*) FROM command_keys WHERE key = 'b'"))
	})
}

// A key may be removed, as its time is over, after it was met and before it is looked up.
func TestOnce_AKeyThatIsRemovedMeanwhileIsFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, openPostgres(t))
	_, err := w.db.DB().Exec(`CREATE SEQUENCE turn; CREATE FUNCTION first_meets_one() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF nextval('turn') = 1 THEN RETURN NULL; END IF; RETURN NEW; END $$;
		CREATE TRIGGER meets BEFORE INSERT ON command_keys FOR EACH ROW EXECUTE FUNCTION first_meets_one()`)
	require.NoError(t, err)
	fee, err := command.Call[int](t.Context(), w.lib, AskFee{"l1"}, command.Once("k"))
	require.NoError(t, err)
	require.Equal(t, 7, fee)
	require.EqualValues(t, 1, w.handled.Load())
	require.Equal(t, 1, w.count("SELECT count(*) FROM command_keys WHERE result::text = '7'"))
}

// A handler that returns an interface may return nil: it has done its work.
func TestCall_NilIsAResult(t *testing.T) {
	t.Parallel()
	units, err := uow.New(uow.Config{Domain: billing, Providers: []uow.Provider{openSQLite(t)}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units))
	h := command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.Returns(func(context.Context, BillFee) (any, error) { return nil, nil }), //nolint:nilnil // that is what it is about
		command.On(func(context.Context, Close) error { return nil }),
	}})
	for range 2 {
		for _, options := range [][]command.Option{nil, {command.Once("k")}} {
			got, err := command.Call[any](t.Context(), h, BillFee{"l1"}, options...)
			require.NoError(t, err)
			require.Nil(t, got)
		}
	}
	_, err = command.Call[any](t.Context(), h, Close{"l1"})
	require.ErrorContains(t, err, "the handler returns nothing")
}

// An option that is nil, such as a variable that nobody set, is named instead of a panic of a request.
func TestDo_AnOptionThatIsNil(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const want = "command: option 2 is nil: take it out"
		options := []command.Option{command.Before(time.Time{}), nil}
		require.EqualError(t, w.lib.Do(t.Context(), PlaceLoan{"l1", "ann"}, options...), want)
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			require.EqualError(t, command.Send(ctx, PlaceLoan{"l1", "ann"}, options...), want)
			require.EqualError(t, command.Schedule(ctx, "t", time.Time{}, PlaceLoan{"l1", "ann"}, options...), want)
			return nil
		}))
	})
}

// A constructor that returns neither a loan nor an error has made a mistake, and is told.
func TestCreate_NothingIsNoAggregate(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		h, err := command.New(command.Config{Units: w.units, Handlers: []command.Handler{
			command.Create(w.loans, func(PlaceLoan) (*Loan, error) { return nil, nil }), //nolint:nilnil // that is what it is about
			command.Update(w.loans, (*Loan).Confirm), command.Update(w.loans, (*Loan).Add),
			command.On(func(ctx context.Context, _ AskFee) error { return w.loans.Remove(ctx, nil) }),
		}})
		require.NoError(t, err)
		err = w.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, w.loans.Save(ctx, &Loan{Root: domain.RootWithID("l0")}))
			require.ErrorContains(t, h.Do(ctx, PlaceLoan{"l1", "ann"}), "repository: Save was given nil instead of a loan")
			return nil
		})
		require.ErrorContains(t, err, "Save was given nil", "the unit has failed")
		require.ErrorContains(t, h.Do(t.Context(), AskFee{"l1"}), "repository: Remove was given nil instead of a loan")
		require.Zero(t, w.count("SELECT count(*) FROM documents"))
	})
}

func TestIfVersion_AnotherOneIsRefused(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.place("l1")
		wrong := new(repository.PreconditionError)
		require.ErrorAs(t, w.lib.Do(t.Context(), CountLoan{"l1"}, command.IfVersion(7)), &wrong)
		require.EqualError(t, wrong, `repository: Loan "l1" has version 1 and not 7: load it again`)
		require.NoError(t, w.lib.Do(t.Context(), CountLoan{"l1"}, command.IfVersion(1)))
		require.ErrorAs(t, w.lib.Do(t.Context(), CountLoan{"l1"}, command.IfVersion(1)), &wrong, "somebody else was first")
		require.EqualError(t, wrong, `repository: Loan "l1" has version 2 and not 1: load it again`)
		require.ErrorContains(t, w.lib.Do(t.Context(), CountLoan{"l1"}, command.IfVersion(-1)), "versions start at 1")
		require.ErrorContains(t, w.send(CountLoan{"l1"}, command.IfVersion(1)), "is of no use to Send")
	})
}

func TestTimeout_EndsAHandler(t *testing.T) {
	t.Parallel()
	units, err := uow.New(uow.Config{Domain: billing, Providers: []uow.Provider{openSQLite(t)}})
	require.NoError(t, err)
	h := command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.On(func(ctx context.Context, _ BillFee) error { <-ctx.Done(); return ctx.Err() }, command.Timeout(time.Millisecond)),
		command.On(func(context.Context, Close) error { return nil }),
	}})
	require.ErrorContains(t, h.Do(t.Context(), BillFee{"a"}), "took longer than 1ms (command.Timeout)")
}

// An idempotency key is known within the tenant that the unit's Enrich says.
// A handler that doesn't return has failed: metrics and the page Commands say so, whether it was
// called or had a message.
func TestDo_APanicIsAFailedAttempt(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var ends func()
		units := w.billed
		h := command.Must(command.Config{Units: units, Queue: subscription.Stream{MaxAttempts: 2, Backoff: time.Millisecond}, Handlers: []command.Handler{
			command.On(func(context.Context, BillFee) error { ends(); return nil }),
			command.On(func(context.Context, Close) error { return nil }),
		}})
		ends = func() { panic("no") }
		require.PanicsWithValue(t, "no", func() { _ = h.Do(t.Context(), BillFee{"l1"}, command.Once("k")) })
		require.Zero(t, w.count("SELECT count(*) FROM command_keys"), "it has used up nothing")
		c := counted(h, "BillFee")
		require.EqualValues(t, 1, c.Failed)
		require.Contains(t, c.LastFailure.Error, "panicked")

		ends = runtime.Goexit
		defer w.runs(engine.Context{Commands: h}, engine.Context{Units: w.units, Commands: w.lib})()
		require.NoError(t, w.send(ChargeFee{"l1"}))
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 1 }, "it is parked")
		require.EqualValues(t, 3, counted(h, "BillFee").Failed)
	})
}

func TestOnce_OfTheTenantThatEnrichSays(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		type who struct{}
		units, err := uow.New(uow.Config{Domain: lonely, Providers: []uow.Provider{w.db}, Enrich: func(ctx context.Context, o domain.Origin) domain.Origin {
			o.TenantID, _ = ctx.Value(who{}).(string)
			return o
		}})
		require.NoError(t, err)
		require.NoError(t, engine.Migrate(t.Context(), units))
		runs := 0
		h, err := command.New(command.Config{Units: units, Handlers: []command.Handler{command.On(func(context.Context, Count) error { runs++; return nil })}})
		require.NoError(t, err)
		for _, tenant := range []string{"acme", "acme", "duck"} {
			require.NoError(t, h.Do(context.WithValue(t.Context(), who{}, tenant), Count{}, command.Once("k")))
		}
		require.Equal(t, 2, runs)
		require.Equal(t, 1, w.count("SELECT count(*) FROM command_keys WHERE tenant = 'duck' AND key = 'k'"))
	})
}

type Count struct{}

var lonely = domain.MustNew("lonely", domain.Command[Count](domain.KeyedBy("")))
