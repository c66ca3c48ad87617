package outboxdb_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

// S3-14, F-34, S2-10: what members, deaths, late write-backs, operators and
// housekeeping may do to a database, held against a model after each step: only edges
// of the life cycle are taken, attempts are those that were spent, and nothing that is
// undelivered disappears.
func TestLifeCycle_S3_14_F_34_RandomHistories(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for seed := range uint64(3) {
			h := &history{bench: &bench{b}, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), rows: map[int64]*life{}, late: map[*member][]claim{}, delete: seed == 2}
			h.join()
			for range 60 {
				h.step()
				h.check()
			}
			h.finish()
		}
	})
}

type history struct {
	*bench

	seed    uint64
	random  *rand.Rand
	members []*member
	out     []hand              // claims that nobody has settled
	late    map[*member][]claim // claims whose member was ended
	rows    map[int64]*life
	before  map[int64]outbox.Status
	delete  bool
	log     []string
}

// hand is a claim of a member.
type hand struct {
	m *member
	c claim
}

// life is what must be true of a row.
type life struct{ spent, lost int }

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) words() string { return fmt.Sprintf("seed %d: %v", h.seed, h.log) }

func (h *history) join() {
	h.members = append(h.members, h.bench.join(fmt.Sprint("w", len(h.members)), outboxdbtest.Partitions/2))
}

func (h *history) step() {
	switch n := h.random.IntN(100); {
	case n < 15:
		keys := make([]string, 1+h.random.IntN(5))
		for i := range keys {
			keys[i] = fmt.Sprint("k", h.random.IntN(5))
		}
		h.say("insert %v", keys)
		h.Insert(keys...)
		for seq := h.Count("SELECT max(seq) FROM outbox_messages"); len(keys) > 0; keys = keys[1:] {
			h.rows[seq] = &life{}
			seq--
		}
	case n < 45:
		h.claims()
	case n < 70:
		h.settles()
	case n < 80:
		h.dies()
	case n < 95:
		h.operates()
	default:
		h.purges()
	}
}

func (h *history) claims() {
	m := h.members[h.random.IntN(len(h.members))]
	c := m.claim(1 + h.random.IntN(6))
	h.say("claim %d of %d: %v", c.n, m.ID, outboxdbtest.Seqs(c.rows))
	for _, r := range c.rows {
		for _, other := range h.out {
			require.False(h.T, slices.ContainsFunc(other.c.rows, func(o relay.Claimed) bool { return o.KeyHash == r.KeyHash }), "a key in two hands. %s", h.words())
		}
	}
	h.out = append(h.out, hand{m, c})
}

func (h *history) settles() {
	for m, all := range h.late { // what its member's end has decided about
		c := all[h.random.IntN(len(all))]
		require.False(h.T, m.Settle(m.settlement(c, published)), h.words())
		break
	}
	if len(h.out) == 0 {
		return
	}
	i := h.random.IntN(len(h.out))
	m, c := h.out[i].m, h.out[i].c
	h.out = slices.Delete(h.out, i, i+1)
	outcomes := []outcome{back}
	broken := map[int64]bool{}
	for n, r := range c.rows {
		o := back
		if !broken[r.KeyHash] {
			o = []outcome{published, published, failed(0), failed(time.Hour), given, held, {status: outbox.Failed, err: "x", unpaid: true}}[h.random.IntN(7)]
		}
		broken[r.KeyHash] = o.status != outbox.Published
		outcomes = append(outcomes[:n], o)
		h.became(r.Seq, o)
	}
	h.say("settle %d of %d: %v", c.n, m.ID, outcomes)
	s := m.settlement(c, outcomes...)
	s.Delete = h.delete
	require.True(h.T, m.Settle(s), h.words())
	maps.DeleteFunc(m.keys, func(_, n int64) bool { return n == c.n })
}

func (h *history) became(seq int64, o outcome) {
	if o == back {
		return
	}
	row := h.rows[seq]
	if !o.unpaid {
		row.spent++
	}
	if o.status == outbox.Failed || o.held {
		row.lost = 0 // it was tried, and has killed nobody
	}
	if o.status == outbox.Published && h.delete {
		delete(h.rows, seq)
	}
}

// dies ends a member, after its lease or as its process is known to be dead.
func (h *history) dies() {
	i := h.random.IntN(len(h.members))
	m := h.members[i]
	h.say("end of %d", m.ID)
	require.True(h.T, h.reap(m, true).Done)
	h.out = slices.DeleteFunc(h.out, func(o hand) bool {
		if o.m == m {
			h.late[m] = append(h.late[m], o.c)
			for _, r := range o.c.rows {
				h.rows[r.Seq].lost++
			}
		}
		return o.m == m
	})
	h.members = slices.Delete(h.members, i, i+1)
	for len(h.members) < 2 {
		h.join()
	}
}

func (h *history) operates() {
	if len(h.before) == 0 {
		return
	}
	seqs := slices.Sorted(maps.Keys(h.before))
	seq := seqs[h.random.IntN(len(seqs))]
	e := h.entry(seq)
	verb := []outbox.Verb{outbox.VerbRetry, outbox.VerbAbandon, outbox.VerbSkip}[h.random.IntN(3)]
	allowed := map[outbox.Verb]bool{
		outbox.VerbRetry:   e.Status == outbox.Failed || e.Status == outbox.Abandoned,
		outbox.VerbAbandon: e.Status == outbox.Pending || e.Status == outbox.Failed,
		outbox.VerbSkip:    e.Held,
	}[verb]
	h.say("%s %d", verb, seq)
	require.Equal(h.T, allowed, h.do(verb, seq) == 1, h.words())
	if allowed && verb == outbox.VerbRetry {
		*h.rows[seq] = life{}
	}
}

func (h *history) purges() {
	h.aged()
	n := h.purge(minute)
	h.say("purge of %v", n)
	for seq, status := range h.before {
		if h.Count("SELECT count(*) FROM outbox_messages WHERE seq = ?", seq) == 0 {
			require.True(h.T, status.Finished(), "row %d was %s. %s", seq, status, h.words())
			delete(h.rows, seq)
			n.Published--
			if status == outbox.Abandoned {
				n.Published, n.Abandoned = n.Published+1, n.Abandoned-1
			}
		}
	}
	require.Zero(h.T, n, h.words())
}

// check holds the database against the model and against what it was before the step.
func (h *history) check() {
	h.T.Helper()
	inHand := map[int64]hand{}
	for _, o := range h.out {
		for _, r := range o.c.rows {
			inHand[r.Seq] = o
		}
	}
	entries := h.entries()
	require.Len(h.T, entries, len(h.rows), "what is undelivered doesn't disappear. %s", h.words())
	now := map[int64]outbox.Status{}
	for _, e := range entries {
		row, o := h.rows[e.Seq], inHand[e.Seq]
		require.NotNil(h.T, row, h.words())
		now[e.Seq] = e.Status
		if from, ok := h.before[e.Seq]; ok && from != e.Status {
			require.True(h.T, from.CanBecome(e.Status) || from == outbox.Failed && e.Status == outbox.Processing, "row %d went from %s to %s. %s", e.Seq, from, e.Status, h.words())
		}
		require.Equal(h.T, o.m != nil, e.Status == outbox.Processing, "row %d is %s. %s", e.Seq, e.Status, h.words())
		if o.m != nil {
			require.Equal(h.T, []int64{int64(o.m.ID), o.c.n}, []int64{e.Fence, e.ClaimID}, h.words())
		}
		require.Equal(h.T, row.spent, e.Attempts, "row %d is %s. %s", e.Seq, e.Status, h.words())
		if e.Status != outbox.Published {
			require.Equal(h.T, row.lost, e.Losses, "row %d. %s", e.Seq, h.words())
		}
	}
	h.before = now
}

// finish brings everything that is left to its end.
func (h *history) finish() {
	for _, m := range h.members {
		h.reap(m, true)
	}
	for _, e := range h.entries() {
		if e.Status == outbox.Failed || e.Status == outbox.Abandoned {
			require.Equal(h.T, 1, h.do(outbox.VerbRetry, e.Seq))
		}
	}
	m := h.worker("last")
	m.settle(m.claim(1000), published)
	for _, s := range h.statuses() {
		require.Equal(h.T, outbox.Published, s, h.words())
	}
	h.consistent()
	h.reap(m, true)
	h.aged()
	h.purge(minute)
}
