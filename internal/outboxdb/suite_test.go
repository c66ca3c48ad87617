package outboxdb_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

func TestStore_PostgreSQL(t *testing.T) { suite(t, outboxdbtest.PostgreSQL) }

func TestStore_SQLite(t *testing.T) { suite(t, outboxdbtest.SQLite) }

// suite is what holds on every database. Each test has one of its own.
func suite(t *testing.T, database func(testing.TB) outboxdbtest.Database) {
	t.Parallel()
	test := func(name string, f func(t *testing.T, b *bench)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, &bench{outboxdbtest.Open(t, database(t))})
		})
	}
	ofRows(test)
	ofLooks(test)
	ofSettlements(test)
	ofMembers(test)
	ofPeople(test)
	ofChanges(test)
	ofRetention(test)
	ofLanes(test)
}

type suiteTest = func(name string, f func(t *testing.T, b *bench))

// bench is an outbox with what the suite does to it.
type bench struct{ *outboxdbtest.Bench }

// member is a member that knows what it has in hand.
type member struct {
	*outboxdbtest.Member

	keys map[int64]int64 // in hand, by the number of their claim
}

// claim is one that a member has made.
type claim struct {
	n    int64
	rows []relay.Claimed
}

func (b *bench) join(name string, parts int) *member {
	b.T.Helper()
	return &member{b.Join(name, time.Minute, parts), map[int64]int64{}}
}

// worker has all partitions that are free.
func (b *bench) worker(name string) *member {
	b.T.Helper()
	return b.join(name, outboxdbtest.Partitions)
}

// heir has what a member had, whose lease has passed.
func (b *bench) heir(of *member) *member {
	b.T.Helper()
	b.Expire()
	b.reap(of, false)
	return b.worker("heir")
}

func (b *bench) reap(m *member, dead bool) relay.Reaped {
	b.T.Helper()
	r, err := b.Reap(b.T.Context(), m.ID, dead)
	require.NoError(b.T, err)
	return r
}

// claim takes at most so many rows, the oldest first: of each key that has nothing in
// hand those from its head on that may go.
func (m *member) claim(limit int) claim {
	m.T.Helper()
	stopped := map[int64]bool{}
	for key := range m.keys {
		stopped[key] = true
	}
	rows := slices.SortedFunc(slices.Values(m.Look(100_000)), func(a, b relay.QueueRow) int { return cmp.Compare(a.Seq, b.Seq) })
	rows = slices.DeleteFunc(rows, func(r relay.QueueRow) bool {
		stopped[r.Key] = stopped[r.Key] || r.Waits
		return stopped[r.Key]
	})
	request := m.Next(rows[:min(limit, len(rows))]...)
	got, err := m.Store.Claim(m.T.Context(), request)
	require.NoError(m.T, err)
	require.True(m.T, got.Alive)
	for _, r := range got.Rows {
		m.keys[r.KeyHash] = request.N
	}
	return claim{request.N, got.Rows}
}

// outcome is what became of a row: pending is none.
type outcome struct {
	status outbox.Status
	held   bool
	after  time.Duration
	err    string
	unpaid bool
}

var (
	published = outcome{status: outbox.Published}
	back      = outcome{status: outbox.Pending}
	given     = outcome{status: outbox.Abandoned, err: "x"}
	held      = outcome{status: outbox.Abandoned, err: "x", held: true}
)

func failed(after time.Duration) outcome {
	return outcome{status: outbox.Failed, err: "no", after: after}
}

// settlement is that of a claim, with an outcome for each row or one for all.
func (m *member) settlement(c claim, outcomes ...outcome) relay.Settlement {
	s := relay.Settlement{Member: m.ID, Lane: m.Lane, N: c.n}
	for i, r := range c.rows {
		o := outcomes[min(i, len(outcomes)-1)]
		attempts := r.Attempts + 1
		if o.unpaid {
			attempts--
		}
		switch {
		case o.status == outbox.Published:
			s.Published = append(s.Published, r.Ref())
			s.Retries += min(r.Attempts, 1)
		case o.status == outbox.Failed || o.held:
			s.Failed = append(s.Failed, relay.Failure{RowRef: r.Ref(), Attempts: attempts, DueIn: o.after, Class: "transient", Error: o.err, Held: o.held})
		case o.status == outbox.Abandoned:
			s.Abandoned = append(s.Abandoned, relay.Abandonment{RowRef: r.Ref(), Class: "permanent", Error: o.err, Attempts: attempts, Losses: r.Losses})
		}
	}
	return s
}

// settle writes outcomes back, and says whether the claim's token was there.
func (m *member) settle(c claim, outcomes ...outcome) bool {
	m.T.Helper()
	for key, n := range m.keys {
		if n == c.n {
			delete(m.keys, key)
		}
	}
	return m.Settle(m.settlement(c, outcomes...))
}

// settles claims as many rows as there are outcomes, and settles them.
func (m *member) settles(outcomes ...outcome) claim {
	m.T.Helper()
	c := m.claim(len(outcomes))
	require.Len(m.T, c.rows, len(outcomes))
	require.True(m.T, m.settle(c, outcomes...))
	return c
}

// inState stores one row in a state and returns its seq.
func (b *bench) inState(m *member, key string, o outcome) int64 {
	b.T.Helper()
	b.Insert(key)
	seq := b.Count("SELECT max(seq) FROM outbox_messages")
	if o != back {
		c := m.claim(1)
		require.Equal(b.T, []string{key}, keys(c))
		if o.status != outbox.Processing {
			require.True(b.T, m.settle(c, o))
		}
	}
	return seq
}

var inHand = outcome{status: outbox.Processing}

func keys(c claim) []string {
	all := []string{}
	for _, r := range c.rows {
		all = append(all, r.PartitionKey)
	}
	return all
}

// entries are all rows, in order.
func (b *bench) entries() []outbox.Entry {
	b.T.Helper()
	all, err := b.Find(b.T.Context(), outbox.Filter{Limit: 100_000})
	require.NoError(b.T, err)
	return all
}

func (b *bench) entry(seq int64) outbox.Entry {
	b.T.Helper()
	found, err := b.Find(b.T.Context(), outbox.Filter{Seqs: []int64{seq}})
	require.NoError(b.T, err)
	require.Len(b.T, found, 1)
	return found[0]
}

// statuses are those of all rows, in order.
func (b *bench) statuses() (all []outbox.Status) {
	b.T.Helper()
	for _, e := range b.entries() {
		all = append(all, e.Status)
	}
	return all
}

// due makes what waits for its retry due, as time would.
func (b *bench) due() {
	b.T.Helper()
	b.Exec("UPDATE outbox_queue SET due_at = " + past(b.Bench) + " WHERE due_at IS NOT NULL")
}

// aged makes all that is finished an hour older.
func (b *bench) aged() {
	b.T.Helper()
	b.Exec("UPDATE outbox_log SET at = " + past(b.Bench))
	b.Exec("UPDATE outbox_abandoned SET at = " + past(b.Bench))
}

// consistent is nothing that contradicts itself.
func (b *bench) consistent() {
	b.T.Helper()
	found, err := b.Contradictions(b.T.Context())
	require.NoError(b.T, err)
	require.Empty(b.T, found)
}

func (b *bench) stats(target string) outbox.Stats {
	b.T.Helper()
	s, err := b.Stats(b.T.Context())
	require.NoError(b.T, err)
	return s[target]
}
