package outboxdb_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

func ofRows(test suiteTest) {
	test("Claim_A23_NoRowsTakesNothing", noRows)
	test("Claim_S3_22_MarksTheRow", marksTheRow)
	test("Claim_D9_BytesAndTimesComeAsTheyWere", bytesAndTimes)
	test("Claim_S3_20_F_11_WhoComesTooLateGetsNothing", tooLate) // S3-21
	test("Claim_A21_DueFromItsInstantOn", dueInstant)
	test("Claim_S2_09_C_24_EligibleOrNot", eligible) // C-11
	test("Look_F_08_OrderIsNoClocks", orderIsSeq)
	test("Row_C_21_AnyBytesAreCarried", anyBytes)
	test("Row_F60_OneRowPerMessageAndTarget", oneRowPerMessageAndTarget) // C-03
	test("Row_C_03_OneOfTwoWritersIsRefused", twoWriters)
}

func noRows(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	require.Empty(t, m.Claim())
	require.Empty(t, m.Look(0))
	require.Equal(t, []outbox.Status{outbox.Pending}, b.statuses())
}

func marksTheRow(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	before := b.entries()[0]
	require.Equal(t, outbox.Pending, before.Status)
	require.Nil(t, before.LastAttemptAt)
	c := m.claim(10)
	row := b.entries()[0]
	require.Equal(t, outbox.Processing, row.Status)
	require.Equal(t, "w1", row.LockedBy)
	require.Equal(t, c.n, row.ClaimID)
	require.EqualValues(t, m.ID, row.Fence)
	// By the database's clock: the lease of a minute began just before the claim.
	require.InDelta(t, time.Minute.Seconds(), row.LockedUntil.Sub(*row.LastAttemptAt).Seconds(), 50)
}

func bytesAndTimes(t *testing.T, b *bench) {
	row := outboxdbtest.Row("a")
	row.Payload = nil
	for i := range 256 {
		row.Payload = append(row.Payload, byte(i))
	}
	row.OccurredAt = time.Date(2026, 1, 2, 3, 4, 5, 678000000, time.FixedZone("elsewhere", 5*3600+1800))
	b.InsertRows(row)
	require.Equal(t, time.UTC, b.entries()[0].OccurredAt.Location())
	got := b.worker("w1").claim(1).rows[0]
	require.Equal(t, row.Payload, got.Payload)
	require.True(t, row.OccurredAt.Equal(got.OccurredAt))
	require.Equal(t, time.UTC, got.OccurredAt.Location())
}

// Of many that claim and settle one row at the same time it leaves with one, and to the
// others that is no error.
func tooLate(t *testing.T, b *bench) {
	m := b.worker("w1")
	for round := range 5 {
		b.Insert("a")
		rows := m.Look(10)
		var requests []relay.ClaimRequest
		for range 6 {
			requests = append(requests, m.Next(rows...))
		}
		var mu sync.Mutex
		var errs []error
		var wg sync.WaitGroup
		for _, q := range requests {
			wg.Go(func() {
				c, err := b.Claim(t.Context(), q)
				if err == nil && len(c.Rows) > 0 {
					_, err = b.Settle(t.Context(), relay.Settlement{Member: m.ID, Lane: m.Lane, N: q.N, Published: q.Rows})
				}
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.EqualValues(t, round+1, b.stats("default").Counts[outbox.Published])
		late, err := b.Claim(t.Context(), m.Next(rows...))
		require.NoError(t, err)
		require.Empty(t, late.Rows)
	}
}

func dueInstant(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	m.settles(failed(300 * time.Millisecond))
	for looks := 0; ; looks++ {
		before := b.Count("SELECT count(*) FROM outbox_queue WHERE due_at <= "+now(b)) > 0
		rows, _, err := b.Due(t.Context(), m.Lane, m.Parts, relay.DueAt{}, 10)
		require.NoError(t, err)
		if len(rows) == 0 {
			require.False(t, before, "it was due before")
			continue
		}
		require.Positive(t, looks, "it wasn't due at once")
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_queue WHERE due_at <= "+now(b)), "not before its time")
		require.Len(t, m.claim(1).rows, 1)
		return
	}
}

func now(b *bench) string {
	if b.SQLite() {
		return "strftime('%Y-%m-%dT%H:%M:%fZ','now')"
	}
	return "clock_timestamp()"
}

// Every state: what is queued and doesn't wait may go, and only to a member that lives.
func eligible(t *testing.T, b *bench) {
	m := b.worker("w1")
	states := []outcome{failed(time.Hour), failed(time.Hour), published, given, held, back}
	for i, o := range states {
		b.inState(m, fmt.Sprint("k-", i), o)
	}
	b.Exec("UPDATE outbox_queue SET due_at = " + past(b.Bench) + " WHERE seq = 2")
	require.Equal(t, []string{"k-1"}, keys(m.claim(1)), "the oldest")
	require.Equal(t, []string{"k-5"}, keys(m.claim(10)))
	require.Empty(t, m.claim(10).rows)
	none := b.join("w2", 1)
	require.Empty(t, none.Parts)
	require.Empty(t, none.claim(10).rows, "no partition")
	heir := b.heir(m)
	c, err := b.Claim(t.Context(), m.Next(heir.Look(10)...))
	require.NoError(t, err)
	require.False(t, c.Alive, "its lease was ended")
	require.Empty(t, c.Rows)
	require.Equal(t, []string{"k-1", "k-5"}, keys(heir.claim(10)))
}

func orderIsSeq(t *testing.T, b *bench) {
	b.Insert("a", "a", "b", "a", "b")
	// Clocks that went backwards, and versions: the later the row, the older.
	at := "(timestamptz '2026-01-01' - seq * interval '1 s')"
	if b.SQLite() {
		at = "strftime('%Y-%m-%dT%H:%M:%fZ', 1767225600 - seq, 'unixepoch')"
	}
	b.Exec("UPDATE outbox_messages SET aggregate_version = 10 - seq, created_at = " + at + ", occurred_at = " + at)
	c := b.worker("w1").claim(10)
	require.Equal(t, []string{"a", "a", "b", "a", "b"}, keys(c))
	require.True(t, slices.IsSortedFunc(c.rows, func(x, y relay.Claimed) int { return int(x.Seq - y.Seq) }))
}

// The outbox doesn't read what it carries: bytes that are no envelope neither hide
// other rows nor change on their way.
func anyBytes(t *testing.T, b *bench) {
	rows := []outbox.Row{outboxdbtest.Row("a"), outboxdbtest.Row("b"), outboxdbtest.Row("c")}
	rows[1].Payload, rows[1].ContentType = []byte{0, 0xff, '{', '\'', 0}, "no/thing"
	b.InsertRows(rows...)
	require.Len(t, b.entries(), 3)
	c := b.worker("w1").claim(10)
	require.Equal(t, []string{"a", "b", "c"}, keys(c))
	for i, row := range rows {
		require.Equal(t, row.Payload, c.rows[i].Payload)
		require.Equal(t, row.ContentType, c.rows[i].ContentType)
	}
}

func (b *bench) write(row outbox.Row) error {
	query, err := outboxdb.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	if err != nil {
		return err
	}
	_, err = b.DB.DB.ExecContext(b.T.Context(), string(query))
	return err
}

func oneRowPerMessageAndTarget(t *testing.T, b *bench) {
	row := outboxdbtest.Row("a")
	b.InsertRows(row)
	require.Error(t, b.write(row))
	row.TargetBroker = "partner"
	b.InsertRows(row)
	for _, column := range []string{"message_id", "lane"} {
		_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox_messages SET "+column+" = NULL")
		require.Error(t, err, "a null would switch the uniqueness off")
	}
}

// Two writers both see no row of a message and both write one.
func twoWriters(t *testing.T, b *bench) {
	row := outboxdbtest.Row("a")
	looked, errs := &sync.WaitGroup{}, make(chan error, 2)
	looked.Add(2)
	for range 2 {
		go func() {
			found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
			looked.Done()
			looked.Wait()
			if err == nil && len(found) > 0 {
				err = fmt.Errorf("found %v", found)
			}
			errs <- cmpErr(err, func() error { return b.write(row) })
		}()
	}
	first, second := <-errs, <-errs
	require.NotEqual(t, first == nil, second == nil, "%v, %v", first, second)
	require.Len(t, b.entries(), 1)
}

func cmpErr(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}
