package outboxdb_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// An attempt counts when it has an outcome, at a row that is there or was published,
// kept or not; one that is being made, was lost, or cost nothing doesn't.
func attempts(t *testing.T, b *bench) {
	is := func(attempts, retries int64, rate float64) {
		t.Helper()
		s := b.stats("default")
		require.Equal(t, []int64{attempts, retries}, []int64{s.Attempts, s.Retries})
		require.InDelta(t, rate, s.RetryRate(), 1e-9)
	}
	remove := func(m *member, outcomes ...outcome) {
		t.Helper()
		s := m.settlement(m.claim(len(outcomes)), outcomes...)
		s.Delete = true
		require.True(t, m.Settle(s))
		clear(m.keys)
	}
	m := b.worker("w1")
	b.Insert("a", "b", "c", "d", "e")
	c := m.claim(5)
	is(0, 0, 0) // being made
	require.True(t, m.settle(c, failed(0), failed(0), failed(0), published, back))
	is(4, 0, 0)
	m.settles(published, failed(0), given, published)
	is(8, 3, 3.0/8)
	require.Len(t, m.claim(1).rows, 1)
	is(8, 3, 3.0/8)

	m = b.heir(m)
	is(8, 3, 3.0/8) // lost
	remove(m, published)
	is(9, 4, 4.0/9)
	b.Insert("f", "g")
	remove(m, published, failed(0))
	is(11, 4, 4.0/11)
}

func publishedIsCounted(t *testing.T, b *bench) {
	count := func() int64 { return b.stats("default").Counts[outbox.Published] }
	m := b.worker("w1")
	b.Insert("a", "b", "c", "d")
	m.settles(published, given, published, failed(time.Hour))
	require.EqualValues(t, 2, count())
	b.aged()
	require.Equal(t, outbox.Purged{Published: 2, Abandoned: 1}, purge(t, b.Bench, outbox.Retention{Published: time.Minute, Abandoned: time.Minute}))
	require.EqualValues(t, 2, count(), "it was published, wherever its row is")

	b.due()
	late := m.claim(1)
	heir := b.heir(m)
	require.False(t, m.Settle(m.settlement(late, published)))
	require.EqualValues(t, 2, count(), "a write-back that came too late")
	heir.settles(published)
	require.EqualValues(t, 3, count())

	// Both modes side by side, by many at the same time.
	b.Insert(outboxdbtest.Numbered("many", 40)...)
	var wg sync.WaitGroup
	for i := range 40 {
		s := heir.settlement(heir.claim(1), published)
		s.Delete = i%2 == 0
		wg.Go(func() {
			if known, err := b.Settle(t.Context(), s); err != nil || !known {
				t.Error(known, err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 43, count())
	require.Len(t, b.entries(), 21)
	b.consistent()
}

func statsOfNothing(t *testing.T, b *bench) {
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, s)
	_, _, err = b.Lanes(t.Context(), []string{"default"})
	require.NoError(t, err)
	s, err = b.Stats(t.Context())
	require.NoError(t, err)
	counts := map[outbox.Status]int64{outbox.Pending: 0, outbox.Processing: 0, outbox.Published: 0, outbox.Failed: 0, outbox.Abandoned: 0}
	require.Equal(t, map[string]outbox.Stats{"default": {Counts: counts}}, s)
}
