package outboxtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// count counts rows, by a condition that ends where the database's clock comes.
func (b *Bench) count(table, condition string) (n int) {
	b.T.Helper()
	query := "SELECT count(*) FROM " + table + " WHERE " + condition + dbtime.Now(b.DB.Dialect())
	require.NoError(b.T, b.DB.NewRaw(query).Scan(b.T.Context(), &n))
	return n
}

func leaseEnd(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Hour)
	require.Len(t, w.Claim(1).Rows, 1)
	b.Exec("UPDATE outbox_partitions SET locked_until = " + dbtime.In(b.DB.Dialect(), 300*time.Millisecond))
	pending := 0
	// A look in the instant of the end may find some of them only.
	for looks, taken := 0, 0; taken < Partitions; looks++ {
		ended := b.count("outbox_partitions", "locked_until <= ") > 0
		leases, rows, err := b.Acquire(t.Context(), Owner("w2", time.Hour), Partitions)
		require.NoError(t, err)
		if len(leases) == 0 {
			require.False(t, ended, "a lease that has ended is free")
			continue
		}
		require.Positive(t, looks, "it was held before")
		taken += len(leases)
		pending += rows.Pending
	}
	require.Equal(t, 1, pending)
	require.Empty(t, w.Claim(1).Rows)
}

func dueInstant(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Hour)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(300*time.Millisecond))...)
	for looks := 0; ; looks++ {
		due := b.count("outbox", "available_at <= ") > 0
		*w.Flights = Flights{} // which rounds times
		c = w.Claim(1)
		if len(c.Rows) == 0 {
			require.False(t, due, "it was due before")
			require.Positive(t, c.Next)
			require.LessOrEqual(t, c.Next, 300*time.Millisecond)
			continue
		}
		require.Positive(t, looks, "it wasn't due at once")
		require.Equal(t, 1, b.count("outbox", "available_at <= "), "not before its time")
		return
	}
}

func orderIsSeq(t *testing.T, b *Bench) {
	b.Insert("a", "a", "b", "a", "b")
	// Clocks that went backwards, and versions: the later the row, the older.
	sqlite := b.DB.Dialect().Name().String() == "sqlite"
	for i, e := range b.Entries() {
		at := time.Date(2026, 1, 1, 0, 0, 10-i, 0, time.UTC)
		text := any(at)
		if sqlite {
			text = at.Format(dbtime.Layout)
		}
		b.Exec("UPDATE outbox SET created_at = ?0, occurred_at = ?0, available_at = ?0, aggregate_version = ?1 WHERE seq = ?2", text, 10-i, e.Seq)
	}
	w := b.Worker("w1", Partitions, time.Minute)
	require.Equal(t, []string{"a", "a"}, Keys(w.Claim(2)))
	var claimed []int64
	b.Expire()
	for _, row := range b.Worker("w2", Partitions, time.Minute).Claim(10).Rows {
		claimed = append(claimed, row.Seq)
	}
	require.Len(t, claimed, 5)
	require.True(t, slices.IsSorted(claimed))
}

func recoveredRowsFirst(t *testing.T, b *Bench) {
	old := b.Insert("a", "a", "a")
	dead := b.Worker("dead", Partitions, time.Minute)
	c := dead.Claim(3)
	dead.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: -time.Second},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Pending, Unspent: true},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true})
	require.Len(t, dead.Claim(2).Rows, 2, "the retry and the one behind it: in the hand of a worker that dies")
	fresh := b.Insert("a")
	require.Empty(t, dead.Claim(10).Rows)
	b.Expire()
	c = b.Worker("heir", Partitions, time.Minute).Claim(10)
	var got []string
	for _, row := range c.Rows {
		got = append(got, row.Message.ID)
	}
	require.Equal(t, []string{old[0].MessageID, old[1].MessageID, old[2].MessageID, fresh[0].MessageID}, got)
}

// Many claim with the same leases at the same time.
func oneOfMany(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	for range 10 {
		b.Insert("a")
		var mu sync.Mutex
		var got []outbox.Claim
		var errs []error
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 10, MaxAttempts: 5})
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				if len(c.Rows) > 0 {
					got = append(got, c)
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...), "who comes too late is told nothing, and that is no error")
		require.Len(t, got, 1)
		require.Len(t, got[0].Rows, 1)
		require.Equal(t, 1, b.Entries()[0].Attempts)
		require.Zero(t, w.Settle(got[0], All(got[0], published())...))
		b.Exec("DELETE FROM outbox")
	}
}

func concurrentAcquires(t *testing.T, b *Bench) {
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	for range 5 {
		owners := map[int][]string{}
		var errs []error
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, name := range []string{"w1", "w2", "w3", "w4"} {
			wg.Go(func() {
				leases, _, err := b.Acquire(t.Context(), Owner(name, time.Minute), Partitions/2)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				for _, l := range leases {
					owners[l.Partition] = append(owners[l.Partition], name)
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		for p, names := range owners {
			require.Len(t, names, 1, "partition %d", p)
		}
		b.Expire()
	}
}

func retentions(t *testing.T, b *Bench) {
	const short, long = time.Nanosecond, time.Hour
	for name, c := range map[string]struct {
		retention outbox.Retention
		want      []outbox.Status
	}{
		"published go first": {outbox.Retention{Published: short, Abandoned: long}, []outbox.Status{outbox.Abandoned}},
		"abandoned go first": {outbox.Retention{Published: long, Abandoned: short}, []outbox.Status{outbox.Published}},
		"both go":            {outbox.Retention{Published: short, Abandoned: short}, nil},
		"abandoned are kept": {outbox.Retention{Published: short, Abandoned: -1}, []outbox.Status{outbox.Abandoned}},
		"published are kept": {outbox.Retention{Published: -1, Abandoned: short}, []outbox.Status{outbox.Published}},
	} {
		b.Exec("DELETE FROM outbox")
		b.Expire()
		w := b.Worker("w1", Partitions, time.Minute)
		b.Insert("a", "b", "c", "d")
		c4 := w.Claim(4)
		_, err := b.Settle(t.Context(), outbox.Settlement{Claim: c4.ID, Target: "default", Retention: c.retention, Outcomes: []outbox.Outcome{
			{Seq: c4.Rows[0].Seq, Status: outbox.Published},
			{Seq: c4.Rows[1].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"},
			{Seq: c4.Rows[2].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
			{Seq: c4.Rows[3].Seq, Status: outbox.Pending, Unspent: true},
		}})
		require.NoError(t, err)
		require.Equal(t, []string{"d"}, Keys(w.Claim(1)))
		b.Insert("e")
		require.Eventually(t, func() bool {
			_, err := b.Purge(t.Context(), outbox.Retention{Batch: 2})
			require.NoError(t, err)
			return slices.Equal(append(slices.Clone(c.want), outbox.Failed, outbox.Processing, outbox.Pending), b.Statuses())
		}, 10*time.Second, 2*time.Millisecond, name)
	}
}

func bytesAndTimes(t *testing.T, b *Bench) {
	row := Row("a")
	row.Payload = nil
	for i := range 256 {
		row.Payload = append(row.Payload, byte(i))
	}
	row.OccurredAt = time.Date(2026, 1, 2, 3, 4, 5, 678000000, time.FixedZone("elsewhere", 5*3600+1800))
	b.InsertRows(row)
	require.Equal(t, time.UTC, b.Entries()[0].OccurredAt.Location())
	m := b.Worker("w1", Partitions, time.Minute).Claim(1).Rows[0].Message
	require.Equal(t, row.Payload, m.Body)
	require.Equal(t, "2026-01-01T21:34:05.678000Z", m.Headers["time"])
}

// randomHistories does to a database what workers, crashes, operators and
// housekeeping may, and holds it against a model after each step.
func randomHistories(t *testing.T, b *Bench) {
	steps := 80
	if b.sqlite() {
		steps = 40 // where each look takes longer
	}
	for seed := range uint64(4) {
		b.Exec("DELETE FROM outbox")
		b.Expire()
		h := &history{
			Bench: b, t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)),
			rows: map[int64]*life{}, retention: outbox.Retention{Delete: seed%3 == 2},
			policy: []outbox.OnAbandoned{outbox.Skip, outbox.Hold}[seed%2],
		}
		for _, name := range []string{"w1", "w2"} {
			_, err := b.EnsurePartitions(t.Context(), "default")
			require.NoError(t, err)
			h.parties = append(h.parties, &party{name: name, leases: map[int]outbox.Lease{}})
			h.takeover(h.parties[len(h.parties)-1], Partitions/2)
		}
		for range steps {
			h.step()
		}
		h.finish()
	}
}

type history struct {
	*Bench
	t         *testing.T
	seed      uint64
	random    *rand.Rand
	parties   []*party
	claims    []outbox.Claim // all that were ever made
	rows      map[int64]*life
	before    []outbox.Entry // as they were before the step
	fresh     int            // rows that the step inserted
	log       []string
	retention outbox.Retention
	policy    outbox.OnAbandoned
}

// party is a worker that may not know that its leases are another's.
type party struct {
	name   string
	leases map[int]outbox.Lease
	Flights
}

// life is what must be true of a row.
type life struct {
	spent, lost int
	hand        int64 // the claim that has it; 0: none
}

func (h *history) words() string { return fmt.Sprintf("seed %d: %v", h.seed, h.log) }

func (h *history) step() {
	w := h.parties[h.random.IntN(2)]
	retried := false
	switch n := h.random.IntN(100); {
	case n < 15:
		h.insert()
	case n < 45:
		h.claim(w, 1+h.random.IntN(6), h.random.IntN(5) == 0)
		retried = true
	case n < 72 && len(h.claims) > 0:
		// Mostly one of the last, and sometimes one that is long over.
		i := max(0, len(h.claims)-1-int(h.random.ExpFloat64()*3))
		h.settle(h.claims[i], h.outcomes(h.claims[i]))
	case n < 80:
		h.Exec(fmt.Sprintf("UPDATE outbox_partitions SET locked_until = %s WHERE partition %% 3 = %d", past(h.DB), h.random.IntN(3)))
		h.takeover(w, 1+h.random.IntN(Partitions))
	case n < 83:
		h.refence(w, h.random.IntN(2) == 0)
	case n < 86:
		_, err := h.Announce(h.t.Context(), h.DB, "default", []string{w.name}, slices.Collect(maps.Values(w.leases)), time.Minute)
		require.NoError(h.t, err)
	case n < 96:
		h.operate()
	default:
		h.purge()
	}
	h.check(retried)
}

func (h *history) insert() {
	rows := make([]outbox.Row, 1+h.random.IntN(5))
	words := make([]string, len(rows))
	for i := range rows {
		rows[i] = Row(fmt.Sprint("k", h.random.IntN(5)))
		if h.seed%2 == 1 && h.random.IntN(3) == 0 {
			rows[i].Priority = h.random.IntN(5) - 2
		}
		words[i] = fmt.Sprintf("%s:%d", rows[i].PartitionKey, rows[i].Priority)
	}
	h.log = append(h.log, fmt.Sprint("insert ", words))
	h.InsertRows(rows...)
	h.fresh = len(rows)
}

func (h *history) claim(w *party, limit int, alone bool) outbox.Claim {
	c, err := h.Claim(h.t.Context(), w.Request(outbox.ClaimRequest{
		Target: "default", Worker: w.name, Leases: slices.Collect(maps.Values(w.leases)), Limit: limit, MaxAttempts: 5, Alone: alone,
	}))
	require.NoError(h.t, err, h.words())
	w.Took(c)
	taken := map[string][]int64{}
	for _, row := range c.Rows {
		taken[row.Message.Key] = append(taken[row.Message.Key], row.Seq)
	}
	h.log = append(h.log, fmt.Sprintf("claim %d of %s: %v", c.ID, w.name, taken))
	require.LessOrEqual(h.t, len(c.Rows), limit, h.words())
	// Of each key the leading run of what is unfinished, all of it due.
	for key, seqs := range taken {
		var unfinished []int64
		for _, e := range h.before {
			if e.PartitionKey != key || e.Status == outbox.Published || e.Status == outbox.Abandoned && !e.Held {
				continue
			}
			unfinished = append(unfinished, e.Seq)
			if slices.Contains(seqs, e.Seq) {
				require.Contains(h.t, []outbox.Status{outbox.Pending, outbox.Failed}, e.Status, h.words())
				require.False(h.t, e.AvailableAt.After(time.Now().Add(time.Minute)), h.words())
			}
		}
		require.Equal(h.t, unfinished[:len(seqs)], seqs, h.words())
	}
	for _, row := range c.Rows {
		require.Zero(h.t, h.rows[row.Seq].hand, h.words())
		h.rows[row.Seq].hand = c.ID
	}
	if len(c.Rows) > 0 {
		h.claims = append(h.claims, c)
	}
	return c
}

// outcomes are what a broker may answer to a claim.
func (h *history) outcomes(c outbox.Claim) []outbox.Outcome {
	var all []outbox.Outcome
	broken := map[string]bool{}
	for _, row := range c.Rows {
		o := outbox.Outcome{Seq: row.Seq, Status: outbox.Published}
		if broken[row.Message.Key] {
			o = outbox.Outcome{Seq: row.Seq, Status: outbox.Pending, Unspent: true}
		} else {
			switch h.random.IntN(6) {
			case 0:
				o = outbox.Outcome{Seq: row.Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: []time.Duration{-time.Second, time.Hour}[h.random.IntN(2)]}
			case 1:
				o = outbox.Outcome{Seq: row.Seq, Status: outbox.Failed, Class: "unavailable", Error: "x", After: -time.Second, Unspent: true}
			case 2:
				o = outbox.Outcome{Seq: row.Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: h.policy == outbox.Hold}
			}
			broken[row.Message.Key] = o.Status != outbox.Published
		}
		all = append(all, o)
	}
	return all
}

func (h *history) settle(c outbox.Claim, outcomes []outbox.Outcome) {
	h.log = append(h.log, fmt.Sprint("settle ", c.ID, outcomes))
	late := 0
	for _, o := range outcomes {
		row := h.rows[o.Seq]
		if row == nil || row.hand != c.ID {
			late++
			continue
		}
		row.hand = 0
		if !o.Unspent {
			row.spent++
		}
		if o.Status == outbox.Failed || o.Status == outbox.Abandoned {
			row.lost = 0 // given back: it was tried, and has killed nobody
		}
		if o.Status == outbox.Published && h.retention.Delete {
			delete(h.rows, o.Seq)
		}
	}
	stale, err := h.Bench.Settle(h.t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outcomes, Retention: h.retention})
	require.NoError(h.t, err, h.words())
	require.Equal(h.t, late, stale, h.words())
	for _, w := range h.parties {
		if _, ok := w.claims[c.ID]; ok {
			w.Landed(c.ID, outcomes, stale)
		}
	}
}

func (h *history) takeover(w *party, n int) {
	o := Owner(w.name, time.Minute)
	o.OnAbandoned = h.policy
	leases, _, err := h.Acquire(h.t.Context(), o, n)
	require.NoError(h.t, err, h.words())
	h.log = append(h.log, fmt.Sprint("takeover ", leases))
	h.ended(w, leases, func(row *life) { row.lost++ })
}

func (h *history) refence(w *party, lost bool) {
	o := Owner(w.name, time.Minute)
	o.OnAbandoned = h.policy
	leases, _, err := h.Refence(h.t.Context(), o, lost)
	require.NoError(h.t, err, h.words())
	h.log = append(h.log, fmt.Sprint("refence ", leases, lost))
	h.ended(w, leases, func(row *life) {
		if lost {
			row.lost++
		}
	})
}

// ended ends the claims of a worker's new partitions.
func (h *history) ended(w *party, leases []outbox.Lease, with func(*life)) {
	for _, l := range leases {
		w.leases[l.Partition] = l
	}
	for _, e := range h.before {
		row := h.rows[e.Seq]
		if row != nil && row.hand != 0 && slices.ContainsFunc(leases, func(l outbox.Lease) bool { return l.Partition == e.Partition }) {
			row.hand = 0
			with(row)
		}
	}
}

func (h *history) operate() {
	if len(h.before) == 0 {
		return
	}
	ctx := h.t.Context()
	verb := h.random.IntN(4)
	allowed := true
	var seqs []int64
	for range 1 + h.random.IntN(2) {
		e := h.before[h.random.IntN(len(h.before))]
		seqs = append(seqs, e.Seq)
		switch verb {
		case 0:
			allowed = allowed && (e.Status == outbox.Failed || e.Status == outbox.Abandoned)
		case 1, 2:
			allowed = allowed && (e.Status == outbox.Pending || e.Status == outbox.Failed)
		case 3:
			allowed = allowed && e.Held
		}
	}
	h.log = append(h.log, fmt.Sprint([]string{"retry", "abandon", "prioritize", "skip"}[verb], seqs))
	var err error
	switch verb {
	case 0:
		err = h.Retry(ctx, seqs...)
		for _, seq := range seqs {
			if allowed {
				*h.rows[seq] = life{}
			}
		}
	case 1:
		err = h.Abandon(ctx, h.retention, seqs...)
	case 2:
		err = h.Prioritize(ctx, h.random.IntN(9), seqs...)
	case 3:
		err = h.Skip(ctx, h.retention, seqs...)
	}
	if allowed {
		require.NoError(h.t, err, h.words())
		return
	}
	_, refused := errors.AsType[*outbox.RefusedError](err)
	require.True(h.t, refused, "%v %s", err, h.words())
	for i, e := range h.Entries() {
		require.Equal(h.t, h.before[i].Status, e.Status, h.words())
		require.Equal(h.t, h.before[i].Priority, e.Priority, h.words())
	}
}

func (h *history) purge() {
	h.Exec(fmt.Sprintf("UPDATE outbox SET expires_at = %s WHERE seq %% 2 = %d", past(h.DB), h.random.IntN(2)))
	n, err := h.Purge(h.t.Context(), outbox.Retention{Batch: 3})
	require.NoError(h.t, err)
	h.log = append(h.log, fmt.Sprint("purge of ", n))
	left := map[int64]bool{}
	for _, e := range h.Entries() {
		left[e.Seq] = true
	}
	for _, e := range h.before {
		if !left[e.Seq] {
			require.True(h.t, e.Status.Finished() && !e.Held, "row %d was %s. %s", e.Seq, e.Status, h.words())
			delete(h.rows, e.Seq)
			if e.Status == outbox.Published {
				n.Published--
			} else {
				n.Abandoned--
			}
		}
	}
	require.Zero(h.t, n, h.words())
}

// check holds the database against the model and against what it was before the
// step. In a claim, a failed row is pending on its way.
func (h *history) check(claimed bool) {
	fences := map[int]int64{}
	var states []struct {
		Partition int
		Fence     int64
	}
	require.NoError(h.t, h.DB.NewRaw("SELECT partition, fence FROM outbox_partitions").Scan(h.t.Context(), &states))
	for _, s := range states {
		fences[s.Partition] = s.Fence
	}
	before := map[int64]outbox.Status{}
	for _, e := range h.before {
		before[e.Seq] = e.Status
	}
	hands := map[string]int64{}
	entries := h.Entries()
	for ; h.fresh > 0; h.fresh-- {
		h.rows[entries[len(entries)-h.fresh].Seq] = &life{}
	}
	require.Len(h.t, entries, len(h.rows), "what is undelivered doesn't disappear. %s", h.words())
	for _, e := range entries {
		row := h.rows[e.Seq]
		require.NotNil(h.t, row, h.words())
		from := cmp.Or(before[e.Seq], e.Status)
		require.True(h.t, from == e.Status || from.CanBecome(e.Status) || claimed && from == outbox.Failed && e.Status == outbox.Processing,
			"row %d went from %s to %s. %s", e.Seq, from, e.Status, h.words())
		require.Equal(h.t, row.hand, e.ClaimID, "row %d. %s", e.Seq, h.words())
		require.Equal(h.t, row.hand != 0, e.Status == outbox.Processing, "row %d. %s", e.Seq, h.words())
		attempts := row.spent + row.lost
		if row.hand != 0 {
			attempts++
			require.Equal(h.t, fences[e.Partition], e.Fence, "row %d. %s", e.Seq, h.words())
			require.Equal(h.t, row.hand, cmp.Or(hands[e.PartitionKey], row.hand), "a key in two hands. %s", h.words())
			hands[e.PartitionKey] = row.hand
		}
		require.Equal(h.t, attempts, e.Attempts, "row %d. %s", e.Seq, h.words())
		require.Equal(h.t, row.lost, e.Losses, "row %d. %s", e.Seq, h.words())
	}
	h.before = entries
}

// finish brings everything that is left to its end.
func (h *history) finish() {
	h.Expire()
	w := h.parties[0]
	h.takeover(w, Partitions)
	w.Flights = Flights{} // have ended, as all do
	h.before = h.Entries()
	for _, e := range h.before {
		if e.Status == outbox.Failed || e.Status == outbox.Abandoned {
			require.NoError(h.t, h.Retry(h.t.Context(), e.Seq))
			*h.rows[e.Seq] = life{}
		}
	}
	h.before = h.Entries()
	for {
		c := h.claim(w, 7, false)
		if len(c.Rows) == 0 {
			c = h.claim(w, 1, true)
		}
		if len(c.Rows) == 0 {
			break
		}
		h.check(true)
		h.settle(c, All(c, published()))
		h.check(false)
	}
	for _, s := range h.Statuses() {
		require.Equal(h.t, outbox.Published, s, h.words())
	}
}
