package uow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// A unit of a process whose brokers are not the database's stores nothing, with
// its own SQL before it or without. While the database has none, it is looked for
// again at each unit.
func TestTargetsMismatch(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		for _, before := range []func(context.Context) error{
			func(context.Context) error { return nil },
			func(ctx context.Context) error { _, err := uow.DB(ctx); return err },
		} {
			w := newWorld(t, open)
			deposit := func(id string) error {
				a := newAccount(id)
				a.Deposit(1)
				return w.units.Do(t.Context(), func(ctx context.Context) error {
					return errors.Join(before(ctx), w.save(ctx, a))
				})
			}
			require.NoError(t, deposit("before any engine"))
			other := outbox.Targets{Broker: "default", External: []string{"second", "partner"}}
			require.NoError(t, outboxdb.InitTargets(t.Context(), w.owner, "bank", other))
			err := deposit("refused")
			mismatch, ok := errors.AsType[*outbox.TargetsError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, "bank", mismatch.Context)
			require.True(t, mismatch.Have.Equal(other))
			require.Equal(t, outbox.Targets{Broker: "default", External: []string{"partner"}}, mismatch.Want)
			require.Equal(t, []string{"account-before any engine@1"}, w.things(t))
			require.Len(t, rows(t, w.db), 2)

			require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner, "bank", w.units.Targets(), "mia"))
			require.NoError(t, deposit("accepted"))
		}
	})
}

// T2: a process whose list was changed while it ran doesn't go on for ever.
func TestTargets_AreLookedAtAgain(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		require.NoError(t, outboxdb.InitTargets(t.Context(), w.owner, "bank", w.units.Targets()))
		n := 0
		deposit := func() error {
			n++
			a := newAccount(fmt.Sprint(n))
			a.Deposit(1)
			return w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) })
		}
		require.NoError(t, deposit())
		more := outbox.Targets{Broker: "default", External: []string{"partner", "second"}, Joining: []string{"second"}}
		require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner, "bank", more, "mia"))
		require.Eventually(t, func() bool {
			_, refused := errors.AsType[*outbox.TargetsError](deposit())
			return refused
		}, 6*time.Second, 50*time.Millisecond, "the guarantee is 3 s")
		_, refused := errors.AsType[*outbox.TargetsError](deposit())
		require.True(t, refused, "and stays refused")
		require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner, "bank", w.units.Targets(), "mia"))
		require.NoError(t, deposit())
	})
}

// O13: a unit reads the targets of its own context alone: it costs the same whatever
// others have, and what is malformed there is theirs to mend.
func TestTargets_O13_OthersAreNotRead(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		ctx := t.Context()
		require.NoError(t, outboxdb.InitTargets(ctx, w.owner, "bank", w.units.Targets()))
		var others []string
		for i := range 1000 {
			others = append(others, fmt.Sprintf("('targets:other%d', '{')", i))
		}
		_, err := w.owner.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES "+strings.Join(others, ", "))
		require.NoError(t, err)
		for name, before := range map[string]func(context.Context) error{
			"at once": func(context.Context) error { return nil },
			"begun":   func(ctx context.Context) error { _, err := uow.DB(ctx); return err },
		} {
			a := newAccount(name)
			a.Deposit(1)
			require.NoError(t, w.another(t).Do(ctx, func(ctx context.Context) error { return errors.Join(before(ctx), w.save(ctx, a)) }))
		}
		_, err = outboxdb.ReadTargets(ctx, w.owner)
		require.ErrorContains(t, err, "waybill migrate --set-targets other", "who lists them all is told")
		_, err = w.owner.ExecContext(ctx, "UPDATE outbox_settings SET value = '{' WHERE name = 'targets:bank'")
		require.NoError(t, err)
		a := newAccount("malformed")
		a.Deposit(1)
		err = w.another(t).Do(ctx, func(ctx context.Context) error { return w.save(ctx, a) })
		require.ErrorContains(t, err, "waybill migrate --set-targets bank=<own broker>,<external broker>")
	})
}

// The first unit that writes for a target keeps nobody waiting until it commits: whoever
// writes down targets makes their lanes.
func TestTargets_TheirLanesAreThere(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, db *bun.DB, name string, targets outbox.Targets) error{
		"a context is new": func(ctx context.Context, db *bun.DB, name string, targets outbox.Targets) error {
			return outboxdb.InitTargets(ctx, db, name, targets)
		},
		"an operator changes them": func(ctx context.Context, db *bun.DB, name string, targets outbox.Targets) error {
			return outboxdb.SetTargets(ctx, db, name, targets, "mia")
		},
		"another outbox was taken over": func(ctx context.Context, db *bun.DB, name string, targets outbox.Targets) error {
			err := outboxdb.InitTargets(ctx, db, name, targets)
			if err == nil {
				_, err = db.ExecContext(ctx, "DELETE FROM outbox_lanes")
			}
			return errors.Join(err, outboxdb.InitTargets(ctx, db, name, targets))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newDepot(t, openPostgres)
			_, err := w.owner.ExecContext(t.Context(), "DELETE FROM outbox_lanes")
			require.NoError(t, err)
			require.NoError(t, write(t.Context(), w.owner, depot.Name(), w.units.Targets()))
			first := w.begin(t, parcel("van"))
			select {
			case err := <-w.loading(t, parcel("another van")):
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Error("a unit waits for another one")
			}
			require.NoError(t, first.commit())
		})
	}
}

// join lets partner join the targets of bank.
func (w *world) join(t *testing.T) {
	t.Helper()
	require.NoError(t, outboxdb.SetTargets(t.Context(), w.owner, "bank", outbox.Targets{Broker: "default", External: []string{"partner"}, Joining: []string{"partner"}}, "mia"))
}

// live does to the targets what the last transaction of a back-fill does.
func (w *world) live(t *testing.T) {
	t.Helper()
	_, err := w.owner.ExecContext(t.Context(), `UPDATE outbox_settings SET value = '{"broker":"default","external":["partner"]}' WHERE name = 'targets:bank'`)
	require.NoError(t, err)
}

// S3-09: while an external broker is joining, no unit writes a row for it, in one
// trip or several; the back-fill does, and once it has ended, units do.
func TestJoining_S3_09_NoRowsBeforeTheFlip(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.join(t)
		deposit := func(id string, before func(context.Context) error) []string {
			a := newAccount(id)
			a.Deposit(1)
			require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return errors.Join(before(ctx), w.save(ctx, a)) }))
			var targets []string
			for _, r := range rows(t, w.db) {
				if r.AggregateID == id {
					targets = append(targets, r.TargetBroker)
				}
			}
			return targets
		}
		nothing := func(context.Context) error { return nil }
		begun := func(ctx context.Context) error { _, err := uow.DB(ctx); return err }
		require.Equal(t, []string{"default"}, deposit("a", nothing))
		require.Equal(t, []string{"default"}, deposit("b", begun))
		done, err := outboxdb.New(w.owner, w.owner).Backfill(t.Context(), outbox.Backfill{
			Context: "bank", Target: outbox.Target{Broker: "partner"}, Actor: "alice", Published: []string{"Deposited"},
		})
		require.NoError(t, err)
		require.EqualValues(t, 2, done.Events)
		require.Equal(t, []string{"default", "partner"}, deposit("c", begun))
		require.Equal(t, []string{"default", "partner"}, deposit("d", nothing))
		w.db.reset()
		deposit("e", nothing)
		require.Equal(t, []string{"commit 2"}, w.db.calls, "in one trip again")
		w.returned(t)
	})
}

// S3-09: a unit that has read that a target is joining, and whose transaction
// begins when it is live already, notices.
func TestJoining_S3_09_TheFlipIsSeenInTheTransaction(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.join(t)
		a := newAccount("a")
		a.Deposit(1)
		w.db.begin = func() { w.live(t) }
		require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, a) }))
		require.Len(t, rows(t, w.db), 2)
	})
}

// S3-09: what a unit has read while a target is joining holds for that unit alone. The next one
// may be the first after the flip, and its rows for that target would be written by nobody.
func TestJoining_S3_09_EveryUnitLooks(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		w.join(t)
		for _, id := range []string{"before", "after"} {
			a := newAccount(id)
			a.Deposit(1)
			w.saved(t, a)
			w.live(t)
		}
		var targets []string
		for _, r := range rows(t, w.db) {
			targets = append(targets, r.AggregateID+" "+r.TargetBroker)
		}
		require.Equal(t, []string{"before default", "after default", "after partner"}, targets)
	})
}

// A transaction that sees the past is run again.
func TestJoining_RepeatableRead(t *testing.T) {
	w := newWorld(t, openPostgres)
	_, err := w.owner.ExecContext(t.Context(), "CREATE TABLE looked (n int)")
	require.NoError(t, err)
	w.join(t)
	tries := 0
	require.NoError(t, w.units.Do(t.Context(), func(ctx context.Context) error {
		tries++
		db, err := uow.DB(ctx)
		require.NoError(t, err)
		_, err = db.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM looked")
		require.NoError(t, err)
		if tries == 1 {
			w.live(t)
		}
		a := newAccount("a")
		a.Deposit(1)
		return w.save(ctx, a)
	}))
	require.Equal(t, 2, tries)
	require.Len(t, rows(t, w.db), 2)
}

// What is right is accepted.
func TestPartitionsMatch(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open, func(c *uow.Config) { c.Partitions = 64 })
		a := newAccount("a")
		a.Deposit(1)
		w.saved(t, a)
		require.Len(t, rows(t, w.db), 2)
	})
}
