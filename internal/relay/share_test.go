package relay

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A member that has too much gives of what it works on as well as of what is empty:
// otherwise whoever joins while few partitions have rows gets none of the work.
func TestRetire_GivesOfWhatHasWork(t *testing.T) {
	const partitions, working = 8, 4
	given := 0
	for range 100 {
		l := &lane{random: rand.Float64, track: newTrack(newBreakers(func() float64 { return 0.5 }))}
		for part := range partitions {
			l.track.take(part)
		}
		for part := range working {
			l.track.parts[part].hand++
		}
		gone := l.retire(partitions / 2)
		require.LessOrEqual(t, len(gone), partitions/2)
		retired := 0
		for part, p := range l.track.parts {
			if p.retired {
				retired++
			}
			if p.retired && part < working {
				given++
				require.NotContains(t, gone, part, "what is in hand comes to its end first")
			}
		}
		require.Equal(t, partitions/2, retired)
	}
	require.InDelta(t, 100*working/2, given, 60)
}
