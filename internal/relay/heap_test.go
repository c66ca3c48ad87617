package relay

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever is added and taken out, the key that is first is the one that goes first.
func TestKeyHeap_HasTheFirstKeyFirst(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // so that it falls the same way again
	var h keyHeap
	var all []*keyTrack
	order := map[*keyTrack]place{}
	for step := range 20_000 {
		if len(all) == 0 || random.IntN(500) > len(all) {
			k := &keyTrack{key: int64(step)}
			order[k] = place{at: random.Int64N(3), class: int8(random.IntN(3) - 1), head: random.Int64N(1000), key: k.key, of: k}
			all = append(all, k)
			h.push(order[k])
		} else {
			i := random.IntN(len(all))
			h.remove(all[i])
			require.Nil(t, all[i].heap)
			all = slices.Delete(all, i, i+1)
		}
		var first *keyTrack
		if len(all) > 0 {
			first = slices.MinFunc(all, func(a, b *keyTrack) int {
				p, q := order[a], order[b]
				return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(q.class, p.class), cmp.Compare(p.head, q.head), cmp.Compare(p.key, q.key))
			})
		}
		require.Same(t, first, h.first())
		for i := range h.places {
			if p := &h.places[i]; p.of.index != i || p.of.heap != &h || i > 0 && p.before(&h.places[(i-1)/width]) {
				require.Fail(t, "a key isn't where it has to be")
			}
		}
	}
}

func TestBucket_HighestAndOldest(t *testing.T) {
	t.Parallel()
	var b bucket
	require.Nil(t, b.highest())
	require.Nil(t, b.oldest())
	low, usual, high := &keyTrack{key: 1}, &keyTrack{key: 2}, &keyTrack{key: 3}
	for _, p := range []place{{head: 20, class: -1, of: low}, {head: 10, class: 0, of: usual}, {head: 30, class: 1, of: high}} {
		b[p.class+1].push(p)
	}
	require.Equal(t, 3, b.len())
	require.Same(t, high, b.highest())
	require.Same(t, usual, b.oldest())
}
