package process_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

func TestProcess_FromItsBeginningToItsEnd(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.place("l1")
		w.until(func() bool { return w.status("l1") == "running" }, "it begins")
		_, i, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Contains(t, i.Timers, "pay-by")
		require.Equal(t, "Library.LoanPlaced.v1", i.Heard[0].Type)

		w.billingSays("l1", Step{"l1", 1}, Noted{"l1"}, Paid{"l1"})
		w.until(func() bool { return w.loan("l1") == "active" }, "the loan is confirmed")
		p, i, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Equal(t, "ended", i.Status)
		require.Equal(t, []int{1}, p.Steps)
		require.Equal(t, 1, p.Notes)
		require.EqualValues(t, 4, i.Version)
		require.Empty(t, i.Timers, "the end stops what waits")

		// What comes too late is ignored.
		w.billingSays("l1", Step{"l1", 2})
		w.until(func() bool {
			return w.count("SELECT count(*) FROM inbox WHERE subscription = 'library.lending.billing.charge'") == 4
		}, "it is heard")
		require.Equal(t, 4, w.count("SELECT COALESCE(sum(version), 0) FROM processes"))
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
	})
}

func TestProcess_ATimerThatIsDue(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		payWithin.Store(int64(10 * time.Millisecond))
		w.start()
		w.place("l1")
		w.until(func() bool { return w.loan("l1") == "cancelled: not paid in time" }, "it is cancelled")
		require.Equal(t, "ended", w.status("l1"))
		require.Zero(t, w.count("SELECT count(*) FROM timers"))
	})
}

// A refusal goes back to the process that has sent the command, by a message of its own.
func TestProcess_HearsThatItsCommandWasRefused(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.refuse.Store(true)
		w.start()
		w.place("l1")
		w.until(func() bool { return w.loan("l1") == "cancelled: no credit for l1" }, "it is cancelled")
		require.Equal(t, "ended", w.status("l1"))
		require.Zero(t, w.count("SELECT count(*) FROM timers"))
	})
}

func TestProcess_WhatComesEarlyIsHeardInOrderOnceItBegins(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.tuned.Patience = time.Hour
		stop := w.start()
		for n := range 5 {
			w.billingSays("l1", Step{"l1", n + 1})
		}
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 5 }, "all are set aside")
		require.Equal(t, "awaited", w.status("l1"))
		require.Equal(t, 5, w.count("SELECT count(*) FROM inbox WHERE subscription = 'library.lending.billing.charge'"), "they are known if they come again")
		require.Zero(t, w.count("SELECT COALESCE(sum(attempts), 0) FROM dead_letters"), "that costs no attempt")
		counted, err := subscription.CountDeadLetters(t.Context(), w.db.Reader())
		require.NoError(t, err)
		require.Empty(t, counted, "they need nobody")
		waiting, err := subscription.CountWaiting(t.Context(), w.db.Reader())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"library.lending": 5}, waiting)
		stop()

		w.start() // Another program knows of them.
		w.billingSays("l2", Step{"l2", 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 6 }, "nobody waits for them")
		w.place("l1")
		w.billingSays("l1", Step{"l1", 6}, Paid{"l1"})
		w.until(func() bool { return w.loan("l1") == "active" }, "the loan is confirmed")
		p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, p.Steps)
		require.Equal(t, "awaited", w.status("l2"))
	})
}

func TestProcess_WhatWaitsTooLongNeedsSomebody(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.tuned.Patience = time.Millisecond
		w.start()
		w.billingSays("l1", Step{"l1", 1})
		w.until(func() bool {
			counted, err := subscription.CountDeadLetters(t.Context(), w.db.Reader())
			return err == nil && counted["library.lending"] == 1
		}, "it counts")
		list, err := subscription.NewDeadLetters(w.db).List(t.Context(), subscription.DeadLetterFilter{}, subscription.DeadLetterPage{})
		require.NoError(t, err)
		require.Equal(t, subscription.DeadLetterEarly, list.Letters[0].Status)
		require.Contains(t, list.Letters[0].Error, `there is no lending "l1" for Billing.Step.v1, as none of ["LoanPlaced" "LoanChecked"] has come`)

		// Asked to be handled now, it waits again; once the process begins it is handled.
		_, err = subscription.NewDeadLetters(w.db).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending"}, subscription.ReplayOptions{Actor: "ann"})
		require.NoError(t, err)
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early' AND replays = 1") == 1
		}, "it waits again")
		w.place("l1")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'replayed'") == 1 }, "it is handled")

		// A discarded one leaves a row, which goes in time.
		w.billingSays("l2", Step{"l2", 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 1 }, "it waits")
		_, err = w.db.DB().NewRaw("UPDATE processes SET forget_at = last_at WHERE id = 'l2'").Exec(t.Context())
		require.NoError(t, err)
		n, err := process.Purge(t.Context(), w.db.DB(), 10)
		require.NoError(t, err)
		require.Zero(t, n, "a message waits for it")
		_, err = subscription.NewDeadLetters(w.db).Discard(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending", Statuses: []subscription.DeadLetterStatus{subscription.DeadLetterEarly}}, subscription.DiscardOptions{Actor: "ann"})
		require.NoError(t, err)
		n, err = process.Purge(t.Context(), w.db.DB(), 10)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

func TestProcess_OptionalEventsThatMeetNoProcessAreIgnored(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.billingSays("l1", Noted{"l1"})
		w.until(func() bool {
			return w.count("SELECT count(*) FROM inbox WHERE subscription = 'library.lending.billing.charge'") == 1
		}, "it is heard")
		require.Empty(t, w.status("l1"))
		require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
	})
}

func TestProcess_S0_21_AMessageWithoutIdentityIsParked(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.billingSays("l1", Step{"", 1}, Step{strings.Repeat("x", 300), 2}, Step{"l1", 3})
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early' AND key_id = 'l1'") == 1
		}, "they hold nobody")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 2 }, "they are parked")
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND error LIKE '%which lending it concerns: its identity is empty%'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND error LIKE '%has 300 bytes: at most 255%'"))
	})
}

// A newer build of billing says more about a step.
type stepInDetail struct {
	LoanID string `json:"loan_id"`
	N      int    `json:"n"`
	Why    string `json:"why"`
}

// N3: an event of a version that this build can't read holds the process that its data names.
func TestProcess_N3_ANewerVersionHoldsItsProcessAndNoOther(t *testing.T) {
	newer := domain.MustNew("billing", domain.Aggregate[*Charge]("charge",
		domain.Event[stepInDetail](domain.Named("Step"), domain.Version(2), domain.Published(),
			domain.Upcast(1, func(old Step) stepInDetail { return stepInDetail{old.LoanID, old.N, "not said"} }))))
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.place("l1")
		w.place("l2")
		w.until(func() bool { return w.status("l1") == "running" && w.status("l2") == "running" }, "both begin")
		units, err := uow.New(uow.Config{Domain: newer, Providers: []uow.Provider{w.db}})
		require.NoError(t, err)
		c := &Charge{Root: domain.RootWithID("c1")}
		c.Raise(stepInDetail{"l1", 1, "newer"})
		require.NoError(t, repository.New[*Charge](units).Save(t.Context(), c))
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND reason = 'newer_version' AND key_id = 'l1'") == 1
		}, "it is parked")
		w.billingSays("l1", Step{"l1", 2})
		w.billingSays("l2", Paid{"l2"})
		w.until(func() bool { return w.loan("l2") == "active" }, "the other one goes on")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held' AND key_id = 'l1'") == 1
		}, "what comes later waits")
	})
}

// What is set aside has a bound; what finds no room waits for it, and is heard in order.
func TestProcess_WhatComesEarlyHasABound(t *testing.T) {
	w := newWorld(t, openPostgres(t))
	w.tuned.Queue.WaitLimit = 2
	w.start()
	for n := range 3 {
		w.billingSays("l1", Step{"l1", n + 1})
	}
	w.until(func() bool { return w.engine.Subscriptions()["library.lending.billing.charge"].Waiting == 1 }, "the third waits for room")
	require.Equal(t, 2, w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'"))
	w.place("l1")
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 4 }, "all are heard")
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{1, 2, 3}, p.Steps)
}

func TestConfig_BrokersAreWhereStreamsComeFrom(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	all, err := process.New(w.units, []process.Config{{Name: "lending", Brokers: map[string]string{"billing::charge": "partner"}}}, slog.Default())
	require.NoError(t, err)
	from := map[string]string{}
	for _, s := range all.Streams() {
		from[s.Category] = s.Broker
	}
	require.Equal(t, map[string]string{"billing::charge": "partner", "library::loan": "default", "library::processes": "default"}, from)
}

// What a process does that can't be done is an error that says what, and nothing of it remains.
func TestProcess_WhatItCannotDo(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		for id, says := range map[string]string{
			"undeclared":    "sends what is no command",
			"unknown timer": `has no timer "remind": declare domain.OnTimer("remind", …)`,
			"no time":       `timer "pay-by" has no time`,
		} {
			odd.Store(&id)
			w.place(id)
			w.until(func() bool {
				return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND key_id = ?", id) == 1
			}, "%s is parked", id)
			require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE key_id = ? AND error LIKE ?", id, "%"+says+"%"))
			require.Empty(t, w.status(id))
		}
		require.Equal(t, 0, w.count("SELECT count(*) FROM timers"))
	})
}

// N3: a state that this build can't keep is not touched: the message waits for one that can.
func TestProcess_N2_AStateThatABuildWouldSpoil(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		for id, change := range map[string]string{"field": `state = '{"Steps":[],"Notes":0,"Extra":1}'`, "form": "state_version = 2", "kind": `state = '{"Steps":"none"}'`} {
			w.place(id)
			w.until(func() bool { return w.status(id) == "running" }, "%s begins", id)
			_, err := w.db.DB().NewRaw("UPDATE processes SET "+change+" WHERE id = ?", id).Exec(t.Context())
			require.NoError(t, err)
			w.billingSays(id, Step{id, 1})
			w.until(func() bool {
				return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked' AND key_id = ?", id) == 1
			}, "%s is parked", id)
			require.Equal(t, 1, w.count("SELECT COALESCE(sum(version), 0) FROM processes WHERE id = ?", id))
		}
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE error LIKE '%is not a field of process_test.Lending in state version 1%'"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM dead_letters WHERE error LIKE '%is stored in state version 2, and this build reads up to 1%'"))
	})
}

// A parked message holds what comes for its process by all streams, its timer included,
// and no other process.
func TestProcess_AParkedMessageHoldsItsProcessAndNoOther(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		id := "l1"
		failing.Store(&id)
		w.place("l1")
		w.place("l2")
		w.until(func() bool { return w.status("l1") == "running" && w.status("l2") == "running" }, "both begin")
		w.billingSays("l1", Step{"l1", 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") == 1 }, "its step is parked")
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
			l, err := w.loans.Get(ctx, "l1")
			if err != nil {
				return err
			}
			l.Raise(LoanChecked{"l1"})
			return w.loans.Save(ctx, l)
		}))
		held := func(n int) func() bool {
			return func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") == n }
		}
		w.until(held(1), "the event of its own context waits behind it") // before the timer, of another stream
		_, err := w.db.DB().NewRaw("UPDATE timers SET available_at = set_at WHERE owner LIKE '%l1'").Exec(t.Context())
		require.NoError(t, err)
		w.billingSays("l2", Step{"l2", 1}, Paid{"l2"})
		w.until(func() bool { return w.loan("l2") == "active" }, "the other one goes on")
		w.until(held(2), "and so does the timer")
		require.Equal(t, 1, w.count("SELECT COALESCE(sum(version), 0) FROM processes WHERE id = 'l1'"))

		failing.Store(nil)
		_, err = subscription.NewDeadLetters(w.db).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending"}, subscription.ReplayOptions{Actor: "ann"})
		require.NoError(t, err)
		w.until(func() bool { return w.loan("l1") == "cancelled: not paid in time" }, "all are handled")
		p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 0}, p.Steps)
	})
}

// Two programs, two streams, events that begin and others, in any order: each is heard
// once, those of one stream in order.
func TestProcess_ManyAtOnce(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		const instances, steps = 20, 5
		w.start()
		w.start()
		var all sync.WaitGroup
		for n := range instances {
			id := fmt.Sprint("l", n)
			all.Go(func() {
				for s := range steps {
					w.billingSays(id, Step{id, s + 1})
				}
			})
			all.Go(func() { w.place(id) })
		}
		all.Wait()
		for n := range instances {
			id := fmt.Sprint("l", n)
			w.until(func() bool {
				return w.count("SELECT COALESCE(sum(version), 0) FROM processes WHERE id = ?", id) == 1+steps
			}, "%s has heard all", id)
			p, _, err := process.Get[*Lending](t.Context(), w.units, id)
			require.NoError(t, err)
			require.Equal(t, []int{1, 2, 3, 4, 5}, p.Steps, id)
			w.billingSays(id, Paid{id})
		}
		w.until(func() bool { return w.count("SELECT count(*) FROM processes WHERE status = 'ended'") == instances }, "all end")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status <> 'replayed'") == 0 }, "nothing is left")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM documents WHERE category = 'library::loan' AND CAST(state AS text) LIKE '%active%'") == instances
		}, "all are confirmed")
	})
}

func TestPurge_EndedOnesAreForgottenInTime(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.tuned.Retention = time.Millisecond
		w.start()
		w.place("l1")
		w.billingSays("l1", Paid{"l1"})
		w.until(func() bool { return w.status("l1") == "ended" }, "it ends")
		w.until(func() bool {
			n, err := process.Purge(t.Context(), w.db.DB(), 10)
			return err == nil && n == 1
		}, "it is forgotten")
	})
}

func TestNew_AllMistakesTogether(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	_, err := engine.New(engine.Config{Contexts: []engine.Context{{Units: w.units, Commands: w.lib, Processes: []process.Config{
		{Name: "lending", Retention: -1, Patience: -1, Queue: subscription.Stream{Batch: 2}, Brokers: map[string]string{"billing::refund": "other"}},
		{Name: "lending"},
		{Name: "returning"},
	}}}})
	for _, part := range []string{
		"Retention is -1ns: above 0, or 0 for 720h0m0s",
		"Patience is -1ns: above 0, or 0 for 10m0s",
		"Queue tunes subscriptions whose",
		`Brokers names the stream "billing::refund", from which it hears nothing`,
		`process "lending" is tuned twice`,
		`context library declares no process "returning"`,
	} {
		require.ErrorContains(t, err, part)
	}
	_, err = engine.New(engine.Config{Units: []*uow.Manager{w.units}})
	require.ErrorContains(t, err, "context library declares processes, and nothing runs them: add engine.Context{Units: …} to Contexts")
	require.Equal(t, []string{"pay-by"}, library.Processes()[0].Timers())
	_, err = domain.ProcessTypeFor[*Lending](billing)
	require.ErrorContains(t, err, "domain.Process[*process_test.Lending](…)")
}
