package timerdb_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

var noon = time.Date(2999, 1, 2, 12, 0, 0, 0, time.UTC)

func TestSet_ASecondOneMovesTheTimerUnderItsOwnId(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		first, other, moved := timer("loan-1", "due", noon), timer("loan-2", "due", noon), timer("loan-1", "due", noon.Add(time.Hour))
		w.commit(timerdb.Set(first), timerdb.Set(other))
		require.Equal(t, []kept{of(first, "waiting"), of(other, "waiting")}, w.kept())
		w.Exec("UPDATE timers SET status = 'sent', sent_at = set_at")
		w.commit(plain, timerdb.Set(moved))
		require.Equal(t, []kept{of(moved, "waiting"), of(other, "sent")}, w.kept(), "it waits again")
		require.False(t, w.waits(first.Row.MessageID))
		require.True(t, w.waits(moved.Row.MessageID))
		require.Equal(t, int64(1), w.Count("SELECT count(*) FROM timers WHERE sent_at IS NULL"))
	})
}

func TestStop_OneOrAllOfAnOwner(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		a, b, c := timer("loan-1", "due", noon), timer("loan-1", "lost", noon), timer("loan-2", "due", noon)
		w.commit(timerdb.Set(a), timerdb.Set(b), timerdb.Set(c))
		w.Exec("UPDATE timers SET status = 'sent', sent_at = set_at WHERE name = 'due'") // on its way, or not
		w.commit(timerdb.Stop("loan-1", "due"), timerdb.Stop("loan-1", "never set"))
		require.Equal(t, []kept{of(b, "waiting"), of(c, "sent")}, w.kept())
		w.commit(plain, timerdb.Stop("loan-1", "lost"))
		w.commit(timerdb.Set(a), timerdb.Set(b))
		w.commit(timerdb.StopAll("loan-1"))
		require.Equal(t, []kept{of(c, "sent")}, w.kept())
	})
}

var errGone = errors.New("the row is gone")

// handle is the transaction of a handler, but for its effect.
func (w *world) handle(id string) error {
	return w.send(uow.Statement{Query: timerdb.Handled(id), Rows: 1, Else: errGone})
}

func TestHandled_FindsTheRowOnceAndNotWhenTheTimerWasStoppedOrMoved(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		once, stopped, before, after := timer("a", "x", noon), timer("b", "x", noon), timer("c", "x", noon), timer("c", "x", noon)
		w.commit(timerdb.Set(once), timerdb.Set(stopped), timerdb.Set(before))
		w.commit(timerdb.Stop("b", "x"), timerdb.Set(after))
		require.NoError(t, w.handle(strings.ToUpper(once.Row.MessageID)))
		for _, gone := range []timerdb.Timer{once, stopped, before} {
			require.ErrorIs(t, w.handle(gone.Row.MessageID), errGone)
			require.False(t, w.waits(gone.Row.MessageID))
		}
		require.Equal(t, []kept{of(after, "waiting")}, w.kept())
		require.ErrorContains(t, w.handle("7"), `timers: "7" is not the id of a timer, which is a UUID`)
		require.False(t, w.waits("7"), "some other message has such an id")
	})
}

// What is sent is what was set: every column, byte for byte.
func TestSet_KeepsTheMessageAsItIs(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		for i, send := range [][]schema.QueryAppender{nil, {plain}} {
			odd := timer(`it's "one" ? $1 \ ?0 Zoë`, "due", noon)
			odd.Row.Payload = []byte{0, '\'', '\\', 0xff, '$', '1', '?', 'x'}
			odd.Row.CloudEvent, odd.Row.CausationID = `{"id":"\u0000 it's"}`, "c'au$2"
			odd.Row.Priority, odd.Row.TenantID, odd.Row.Topic = -3, "tenant", "own"
			w.commit(append(send, timerdb.Set(odd))...)
			var message string
			var payload []byte
			var key int64
			require.NoError(t, w.DB.QueryRowContext(t.Context(), "SELECT message, payload, key FROM timers WHERE id = ?", odd.Row.MessageID).Scan(&message, &payload, &key))
			var row outbox.Row
			require.NoError(t, json.Unmarshal([]byte(message), &row))
			row.Payload = payload
			require.Equal(t, odd.Row, row, i)
			require.Equal(t, outboxdb.KeyOf(&odd.Row), key)
		}
		empty := timer("empty", "x", noon)
		empty.Row.Payload = nil
		w.commit(timerdb.Set(empty))
		w.commit(plain, timerdb.Set(empty))
	})
}

func TestSet_IsNeverDueEarlier(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		at := noon.In(time.FixedZone("", 3600)).Add(time.Nanosecond)
		w.commit(timerdb.Set(timer("a", "x", at)))
		var due dbtime.Time
		require.NoError(t, w.DB.QueryRowContext(t.Context(), "SELECT available_at FROM timers").Scan(&due))
		require.False(t, due.Time.Before(at), "%v", due.Time)
		require.LessOrEqual(t, due.Time.Sub(at), time.Millisecond)
	})
}

func TestSet_RefusesWhatNoDatabaseKeeps(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		change := func(by func(*timerdb.Timer)) timerdb.Timer {
			all := timer("loan-1", "due", noon)
			by(&all)
			return all
		}
		for want, wrong := range map[string]timerdb.Timer{
			"has an owner and a name":             change(func(t *timerdb.Timer) { t.Owner = "" }),
			`timer "" of "loan-1"`:                change(func(t *timerdb.Timer) { t.Name = "" }),
			`has the id "1", which is not a UUID`: change(func(t *timerdb.Timer) { t.Row.MessageID = "1" }),
			"both together have 2501 bytes":       change(func(t *timerdb.Timer) { t.Owner = strings.Repeat("o", 2498) }),
			"for the year 9999":                   change(func(t *timerdb.Timer) { t.At = noon.AddDate(7000, 0, 0) }),
			"tenant_id of message":                change(func(t *timerdb.Timer) { t.Row.TenantID = "a\x00" }),
			"is not UTF-8":                        change(func(t *timerdb.Timer) { t.Name = "\xff" }),
			"has a NUL byte":                      change(func(t *timerdb.Timer) { t.Owner = "\x00" }),
		} {
			require.ErrorContains(t, w.try(timerdb.Set(wrong)), want)
			require.ErrorContains(t, w.try(plain, timerdb.Set(wrong)), want)
		}
		require.ErrorContains(t, w.try(timerdb.Stop("a\x00", "x")), "has a NUL byte")
		w.commit(timerdb.Set(change(func(t *timerdb.Timer) { t.Owner = strings.Repeat("o", 2497) })))
		require.Len(t, w.kept(), 1)
		_, err := timerdb.StopAll("a").AppendQuery(schema.NewNopQueryGen(), nil)
		require.ErrorContains(t, err, "use PostgreSQL or SQLite")
	})
}

// The table explains itself to whoever looks at it with psql.
func TestMigrations_EveryColumnHasAComment(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	require.Zero(t, w.Count("SELECT count(*) FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'timers'"+
		" AND col_description((quote_ident(table_schema) || '.timers')::regclass, ordinal_position) IS NULL"))
}
