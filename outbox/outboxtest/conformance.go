package outboxtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func (b *Bench) sqlite() bool { return b.DB.Dialect().Name().String() == "sqlite" }

// insertMany stores rows in transactions of a size that both databases take.
func (b *Bench) insertMany(keys ...string) {
	b.T.Helper()
	for part := range slices.Chunk(keys, 1000) {
		b.Insert(part...)
	}
}

// One of four outcomes is none that the database knows: nothing of them is
// applied, and the write-back can be made again.
func settleAllOrNone(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	before := b.Entries()
	outcomes := []outbox.Outcome{
		{Seq: c.Rows[0].Seq, Status: outbox.Published},
		{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true},
		{Seq: c.Rows[3].Seq, Status: outbox.Failed, Class: "no class", Error: "x", After: time.Hour},
	}
	for _, r := range []outbox.Retention{{Published: time.Hour}, {Delete: true}} {
		_, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes, Retention: r})
		require.Error(t, err)
		require.Equal(t, before, b.Entries(), "all are in hand as before")
	}
	outcomes[3].Class = "transient"
	require.Zero(t, w.Settle(c, outcomes...))
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Pending, outbox.Failed}, b.Statuses())
}

// Every status under every kind of lease.
func eligible(t *testing.T, b *Bench) {
	states := []struct {
		status outbox.Status
		hold   bool
		due    bool // only for failed
		free   bool
	}{
		{status: outbox.Processing},
		{status: outbox.Failed},
		{status: outbox.Failed, due: true, free: true},
		{status: outbox.Published},
		{status: outbox.Abandoned},
		{status: outbox.Abandoned, hold: true},
		{status: outbox.Pending, free: true},
	}
	w := b.Worker("w1", Partitions, time.Hour)
	var due []int64
	for i, s := range states {
		seq := b.inState(w, fmt.Sprintf("k-%d", i), s.status, s.hold)
		if s.due {
			due = append(due, seq)
		}
	}
	for _, seq := range due {
		b.Exec("UPDATE outbox SET available_at = "+past(b.DB)+" WHERE seq = ?", seq)
	}
	b.Expire()
	require.Empty(t, w.Claim(10).Rows, "the lease has run out")
	kept, err := b.Announce(t.Context(), b.DB, "default", []string{"w1"}, w.Leases, time.Hour)
	require.NoError(t, err)
	require.Len(t, kept, Partitions)
	require.Empty(t, Worker{bench: b, Name: "w2", Target: "default", Leases: w.Leases}.Claim(10).Rows, "it is another's")
	require.Empty(t, Worker{bench: b, Name: "w1", Target: "default"}.Claim(10).Rows, "no partition")
	var free []string
	for i, s := range states {
		if s.free {
			free = append(free, fmt.Sprintf("k-%d", i))
		}
	}
	require.Equal(t, free[:1], Keys(w.Claim(1)), "the oldest")
	require.Equal(t, free[1:], Keys(w.Claim(10)))
}

// hands knows in which claim a row and a key are.
type hands struct {
	mu     sync.Mutex
	rows   map[int64]int64
	keys   map[string]int64
	done   map[int64]bool
	rounds int
}

func (h *hands) take(c outbox.Claim) (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds++
	for _, row := range c.Rows {
		if other, taken := h.rows[row.Seq]; taken {
			err = fmt.Errorf("row %d is in claims %d and %d", row.Seq, other, c.ID)
		}
		if other, taken := h.keys[row.Message.Key]; taken && other != c.ID {
			err = fmt.Errorf("key %s is in claims %d and %d", row.Message.Key, other, c.ID)
		}
		if h.done[row.Seq] {
			err = fmt.Errorf("row %d was published before", row.Seq)
		}
		h.rows[row.Seq], h.keys[row.Message.Key] = c.ID, c.ID
	}
	return err
}

func (h *hands) give(c outbox.Claim, outcomes []outbox.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, row := range c.Rows {
		delete(h.rows, row.Seq)
		delete(h.keys, row.Message.Key)
		if outcomes[i].Status == outbox.Published {
			h.done[row.Seq] = true
		}
	}
}

func (h *hands) enough(rounds int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rounds >= rounds
}

// Workers take partitions, claim, settle one way or the other and give
// partitions back, all at once: each row and each key is in one hand at a time,
// none is published twice, nobody ends in a deadlock, and what is left can be
// claimed.
func manyWorkers(t *testing.T, b *Bench) {
	rounds := 500
	if b.sqlite() {
		rounds = 100 // where all wait for one writer
	}
	if os.Getenv("WAYBILL_LONG") != "" {
		rounds *= 20
	}
	var keys []string
	for range rounds / 25 {
		keys = append(keys, Numbered("k", 40)...)
	}
	b.insertMany(keys...)
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	h := &hands{rows: map[int64]int64{}, keys: map[string]int64{}, done: map[int64]bool{}}
	var wg sync.WaitGroup
	for i := range 6 {
		name := fmt.Sprintf("w%d", i)
		wg.Go(func() {
			if err := h.work(t.Context(), b, name, rounds); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	last := b.Worker("last", Partitions, time.Minute)
	require.Len(t, last.Leases, Partitions)
	for c := last.Claim(1000); len(c.Rows) > 0; c = last.Claim(1000) {
		require.NoError(t, h.take(c))
		all := All(c, published())
		h.give(c, all)
		require.Zero(t, last.Settle(c, all...))
	}
	require.Len(t, h.done, len(keys))
}

// work has up to three claims out.
func (h *hands) work(ctx context.Context, b *Bench, name string, rounds int) error {
	var leases []outbox.Lease
	var out []outbox.Claim
	for !h.enough(rounds) {
		more, _, err := b.Acquire(ctx, Owner(name, time.Minute), 1+rand.N(3)-len(leases))
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		leases = append(leases, more...)
		c, err := b.Claim(ctx, outbox.ClaimRequest{Target: "default", Worker: name, Leases: leases, Limit: 1 + rand.N(8), MaxAttempts: 5})
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if err := h.take(c); err != nil {
			return err
		}
		out = append(out, c)
		all := rand.N(3) == 0
		for len(out) == 3 || all && len(out) > 0 {
			if err := h.settle(ctx, b, out[0]); err != nil {
				return err
			}
			out = out[1:]
		}
		if all {
			if err := b.Release(ctx, "default", leases); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			leases = nil
		}
	}
	for _, c := range out {
		if err := h.settle(ctx, b, c); err != nil {
			return err
		}
	}
	return b.Release(ctx, "default", leases)
}

func (h *hands) settle(ctx context.Context, b *Bench, c outbox.Claim) error {
	outcomes := make([]outbox.Outcome, len(c.Rows))
	for i, row := range c.Rows {
		outcomes[i] = outbox.Outcome{Status: outbox.Pending, Unspent: true}
		switch rand.N(6) {
		case 0:
			outcomes[i] = published()
		case 1:
			outcomes[i] = failed(-time.Second)
		}
		outcomes[i].Seq = row.Seq
	}
	h.give(c, outcomes)
	stale, err := b.Settle(ctx, outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes})
	if err == nil && stale > 0 {
		err = fmt.Errorf("%d rows were in another hand", stale)
	}
	return err
}

// A target whose rows nobody publishes, or of whose partitions some have no
// owner, is seen from outside.
func nobodyPublishes(t *testing.T, b *Bench) {
	b.Insert("a")
	lonely := Row("b")
	lonely.TargetBroker = "partner"
	b.InsertRows(lonely)
	ages := func() (s map[string]outbox.Stats) {
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		return s
	}
	w := b.Worker("w1", 3, time.Minute)
	require.Len(t, w.Leases, 3, "no more than its share")
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions-3, m.Free)
	require.Equal(t, []string{"w1"}, ages()["default"].LeaseOwners)
	require.Empty(t, ages()["partner"].LeaseOwners, "nobody ever came")
	require.EqualValues(t, 1, ages()["partner"].Counts[outbox.Pending])
	before := *ages()["partner"].OldestPending
	b.Exec("UPDATE outbox SET created_at = " + past(b.DB))
	require.Greater(t, *ages()["partner"].OldestPending, before+50*time.Minute, "its age grows")
	b.Expire()
	require.Empty(t, ages()["default"].LeaseOwners, "its only worker died")
	require.Greater(t, *ages()["default"].OldestPending, 50*time.Minute)
}

func fiveFailures(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	for n := 1; n <= 5; n++ {
		c := w.Claim(1)
		require.Len(t, c.Rows, 1)
		require.Equal(t, n, c.Rows[0].Attempts, "one try is one attempt")
		o := failed(-time.Second)
		o.Error = fmt.Sprintf("failure %d", n)
		if n == 5 {
			o.Status = outbox.Abandoned
		}
		w.Settle(c, All(c, o)...)
		e := b.Entries()[0]
		require.Equal(t, o.Status, e.Status)
		require.Equal(t, n, e.Attempts, "not once more for the failure")
		require.Equal(t, o.Error, e.LastError)
		require.Empty(t, e.LockedBy)
		require.Nil(t, e.LockedUntil)
	}
	require.Empty(t, w.Claim(10).Rows)
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	b.Expire()
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Claim(10).Rows, "nor by another")
}

func failedSayWhy(t *testing.T, b *Bench) {
	rows := b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(3)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "first", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Failed, Class: "unknown", Error: "third", After: time.Hour})
	found, err := b.Find(t.Context(), outbox.Filter{Status: outbox.Failed})
	require.NoError(t, err)
	require.Len(t, found, 2)
	for i, row := range []outbox.Row{rows[0], rows[2]} {
		require.Equal(t, row.MessageID, found[i].MessageID)
		require.Equal(t, row.MessageType, found[i].MessageType)
		require.Equal(t, 1, found[i].Attempts)
		require.WithinDuration(t, *found[i].LastAttemptAt, found[i].CreatedAt, time.Minute)
	}
	require.Equal(t, []string{"first", "third"}, []string{found[0].LastError, found[1].LastError})
	require.Equal(t, []string{"transient", "unknown"}, []string{found[0].FailureClass, found[1].FailureClass})
}

// A worker with one call out takes, with its second claim at the latest, what
// other keys have, however much the first key has in front of them.
func longKey(t *testing.T, b *Bench) {
	batch := 500
	if b.sqlite() {
		batch = 150
	}
	b.insertMany(slices.Repeat([]string{"long"}, 10*batch)...)
	short := Numbered("short", 100)
	b.Insert(short...)
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(batch)
	require.Len(t, first.Rows, batch)
	require.Equal(t, "long", first.Rows[0].Message.Key, "the oldest is among the first")
	keys := slices.DeleteFunc(append(Keys(first), Keys(w.Claim(batch))...), func(k string) bool { return k == "long" })
	require.ElementsMatch(t, short, keys)
	w.Settle(first, All(first, published())...)
	require.Equal(t, slices.Repeat([]string{"long"}, batch), Keys(w.Claim(batch)), "the long one goes on")
}

func errorText(t *testing.T, b *Bench) {
	text := "it's \"so\" `bad`; DROP TABLE outbox; -- ?0 ?1 $1 %s \\n\r\n\ttab \u00fc \u6f22 \U0001F69A \u202e"
	for stored, want := range map[string]string{
		text:               text,
		"nul \x00 inside":  "nul \uFFFD inside",
		"bytes \xff\xfe !": "bytes \uFFFD !",
	} {
		b.Exec("DELETE FROM outbox")
		b.Insert("a")
		w := b.Worker("w1", Partitions, time.Minute)
		c := w.Claim(1)
		require.Len(t, c.Rows, 1)
		o := failed(time.Hour)
		o.Error = stored
		w.Settle(c, All(c, o)...)
		require.Equal(t, want, b.Entries()[0].LastError)
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, *s["default"].LastError)
		b.Expire()
	}
}

// A message is found with a row per target until its rows are removed; once all
// are published nothing is left to do for it.
func foundUntilRemoved(t *testing.T, b *Bench) {
	row := Row("a")
	partner := row
	partner.ID, partner.TargetBroker = newID(), "partner"
	b.InsertRows(row, partner)
	b.Insert("other")
	find := func() (targets []string, statuses []outbox.Status) {
		found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
		require.NoError(t, err)
		for _, e := range found {
			targets, statuses = append(targets, e.TargetBroker), append(statuses, e.Status)
		}
		return targets, statuses
	}
	targets, statuses := find()
	require.Equal(t, []string{"default", "partner"}, targets)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, statuses)

	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	require.Equal(t, row.MessageID, c.Rows[0].Message.ID)
	w.Settle(c, All(c, published())...)
	_, statuses = find()
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, statuses, "it is known, and done for one target")
	require.Equal(t, []string{"other"}, Keys(w.Claim(10)), "nothing of it is left to publish there")
	b.Exec("UPDATE outbox SET expires_at = " + past(b.DB) + " WHERE status = 'published'")
	_, err := b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.NoError(t, err)
	targets, _ = find()
	require.Equal(t, []string{"partner"}, targets)
}

// Two transactions both see no row of a message and both write one.
func twoWriters(t *testing.T, b *Bench) {
	row := Row("a")
	ready := make(chan struct{}, 2)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
			ready <- struct{}{}
			if err != nil || len(found) > 0 {
				errs <- fmt.Errorf("found %v, %w", found, err)
				return
			}
			for len(ready) < 2 { // both have looked
				<-time.After(time.Millisecond)
			}
			errs <- b.write(t.Context(), row)
		}()
	}
	first, second := <-errs, <-errs
	require.NotEqual(t, first == nil, second == nil, "%v, %v", first, second)
	require.Len(t, b.Entries(), 1)
}

func (b *Bench) write(ctx context.Context, row outbox.Row) error {
	query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	if err != nil {
		return err
	}
	tx, err := b.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, string(query)); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// A takeover gives partitions another owner, frees the rows in the old one's
// hand and ends those that kill: all of it or nothing.
func takeoverAllOrNothing(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	dead := b.Worker("dead", Partitions, time.Minute)
	c := dead.Claim(2)
	b.Exec("UPDATE outbox SET attempts = 5, losses = 4 WHERE seq = ?", c.Rows[0].Seq) // this one is the fifth
	b.Expire()
	before := b.Entries()
	b.Exec("ALTER TABLE outbox RENAME COLUMN failure_class TO away")
	_, _, err := b.Acquire(t.Context(), Owner("heir", time.Minute), Partitions)
	require.Error(t, err)
	b.Exec("ALTER TABLE outbox RENAME COLUMN away TO failure_class")
	require.Equal(t, before, b.Entries())
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions, m.Free)

	leases, taken, err := b.Acquire(t.Context(), Owner("heir", time.Minute), Partitions)
	require.NoError(t, err)
	require.Len(t, leases, Partitions)
	require.Equal(t, outbox.Takeover{Pending: 1, Abandoned: []int64{c.Rows[0].Seq}}, taken)
	require.Equal(t, []outbox.Status{outbox.Abandoned, outbox.Pending, outbox.Pending}, b.Statuses())
	require.Equal(t, 1, b.Entries()[1].Losses, "the row keeps the memory of it")
	require.Equal(t, []string{"b", "c"}, Keys(Worker{bench: b, Name: "heir", Target: "default", Leases: leases}.Claim(10)))
}

// A retry that is scheduled can be made due at once or cancelled, also for all
// rows of a type.
func rescheduled(t *testing.T, b *Bench) {
	rows := []outbox.Row{Row("a"), Row("b"), Row("c"), Row("d")}
	rows[2].MessageType, rows[3].MessageType = "Ordering.OrderCancelled.v2", "Ordering.OrderCancelled.v2"
	b.InsertRows(rows...)
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	w.Settle(c, All(c, failed(time.Hour))...)
	require.Empty(t, w.Claim(10).Rows, "all are scheduled")

	require.NoError(t, b.Retry(t.Context(), c.Rows[0].Seq))
	require.Equal(t, []string{"a"}, Keys(w.Claim(10)))
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, c.Rows[1].Seq))
	ofType, err := b.Find(t.Context(), outbox.Filter{Type: "Ordering.OrderCancelled.v2"})
	require.NoError(t, err)
	var seqs []int64
	for _, e := range ofType {
		seqs = append(seqs, e.Seq)
	}
	require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, seqs...))
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	require.Empty(t, w.Claim(10).Rows, "what is cancelled never comes")
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Abandoned, outbox.Abandoned, outbox.Abandoned}, b.Statuses())
}

// The outbox doesn't read what it carries: bytes that are no envelope neither
// hide other rows nor change on their way.
func anyBytes(t *testing.T, b *Bench) {
	rows := []outbox.Row{Row("a"), Row("b"), Row("c")}
	rows[1].Payload, rows[1].ContentType = []byte{0, 0xff, '{', '\'', 0}, "no/thing"
	b.InsertRows(rows...)
	require.Len(t, b.Entries(), 3)
	c := b.Worker("w1", Partitions, time.Minute).Claim(10)
	require.Equal(t, []string{"a", "b", "c"}, Keys(c))
	for i, row := range rows {
		require.Equal(t, row.Payload, c.Rows[i].Message.Body)
		require.Equal(t, row.ContentType, c.Rows[i].Message.Headers["content-type"])
	}
}

func limits(t *testing.T, b *Bench) {
	for limit, want := range map[int]int{19: 19, 20: 20, 21: 20} {
		b.Exec("DELETE FROM outbox")
		b.Insert(Numbered("k", 20)...)
		w := b.Worker("w1", Partitions, time.Minute)
		require.Equal(t, Numbered("k", 20)[:want], Keys(w.Claim(limit)))
		require.Len(t, w.Claim(limit).Rows, 20-want)
		b.Expire()
	}
}

func staleDelete(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	slow := b.Worker("slow", Partitions, time.Minute)
	late := slow.Claim(2)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	c := heir.Claim(1)
	settle := func(c outbox.Claim) int {
		stale, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: All(c, published()), Retention: outbox.Retention{Delete: true}})
		require.NoError(t, err)
		return stale
	}
	deleted := func() int64 {
		s, err := b.Stats(t.Context())
		require.NoError(t, err)
		return s["default"].Counts[outbox.Published]
	}
	require.Equal(t, 2, settle(late))
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.Statuses())
	require.Zero(t, deleted(), "what wasn't deleted isn't counted")
	require.Zero(t, settle(c))
	require.Equal(t, []outbox.Status{outbox.Pending}, b.Statuses())
	require.EqualValues(t, 1, deleted())
}

// A claim passes over partitions that somebody has locked, without waiting.
func lockedPartitions(t *testing.T, b *Bench) {
	b.Insert(Numbered("k", 40)...)
	w := b.Worker("w1", Partitions, time.Minute)
	within := func(d time.Duration) (outbox.Claim, error) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return b.Claim(ctx, outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 100, MaxAttempts: 5})
	}
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	if b.sqlite() { // one writer: it waits, and takes nothing if that is too long
		_, err := within(100 * time.Millisecond)
		require.Error(t, err)
		require.NoError(t, tx.Rollback())
		require.Len(t, w.Claim(100).Rows, 40)
		return
	}
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM outbox_partitions WHERE partition < 3 FOR UPDATE")
	require.NoError(t, err)
	c, err := within(10 * time.Second)
	require.NoError(t, err)
	require.True(t, c.Incomplete)
	require.NotEmpty(t, c.Rows)
	for _, row := range c.Rows {
		require.GreaterOrEqual(t, row.Partition, 3)
	}
	require.NoError(t, tx.Rollback())
	rest := w.Claim(100)
	require.False(t, rest.Incomplete)
	require.Len(t, rest.Rows, 40-len(c.Rows))
}

func purgeLeavesWhatIsInHand(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published})
	b.Exec("UPDATE outbox SET expires_at = " + past(b.DB))
	n, err := b.Purge(t.Context(), outbox.Retention{Batch: 10})
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 1}, n)
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.Statuses())
	require.Zero(t, w.Settle(c, outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published}))
}

func retryOnce(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...)
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 8 {
		wg.Go(func() {
			c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 1, MaxAttempts: 5})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			taken += len(c.Rows)
		})
	}
	wg.Wait()
	require.Equal(t, 1, taken)
	require.Equal(t, 2, b.Entries()[0].Attempts)
}

func oldestAcrossPartitions(t *testing.T, b *Bench) {
	keys := Numbered("k", 60)
	b.Insert(keys...)
	w := b.Worker("w1", Partitions, time.Minute)
	for range 6 {
		c := w.Claim(10)
		require.Equal(t, keys[:10], Keys(c))
		partitions := map[int]bool{}
		for _, row := range c.Rows {
			partitions[row.Partition] = true
		}
		require.Greater(t, len(partitions), 1)
		keys = keys[10:]
	}
}

// A renewal comes three times per lease: while any of it is left nobody takes
// the partitions, and afterwards they are still the worker's if nobody came.
func missedRenewal(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", Partitions, time.Minute)
	_, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, 20*time.Second) // two of three were missed
	require.NoError(t, err)
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Leases)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, outbox.Membership{Workers: 1, Free: 0}, m)
	b.Expire()
	kept, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, w.Leases, kept)
	require.Empty(t, b.Worker("w2", Partitions, time.Minute).Leases)
	b.Expire()
	require.Len(t, b.Worker("w2", Partitions, time.Minute).Leases, Partitions)
	kept, err = b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.Empty(t, kept)
}

// Workers that come at the same moment, to partitions that never had an owner
// and to those of the dead, get different ones, and all of them.
func racingWorkers(t *testing.T, b *Bench) {
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	const workers, share = 4, Partitions / 4
	for range 5 {
		var mu sync.Mutex
		owners := map[int][]string{}
		var wg sync.WaitGroup
		for i := range workers {
			name := fmt.Sprintf("w%d", i)
			wg.Go(func() {
				for have := 0; have < share; {
					leases, _, err := b.Acquire(t.Context(), Owner(name, time.Minute), share-have)
					if err != nil {
						t.Error(err)
						return
					}
					have += len(leases)
					mu.Lock()
					for _, l := range leases {
						owners[l.Partition] = append(owners[l.Partition], name)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		require.Len(t, owners, Partitions)
		for p, names := range owners {
			require.Len(t, names, 1, "partition %d", p)
		}
		b.Expire()
	}
}
