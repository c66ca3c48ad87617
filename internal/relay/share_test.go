package relay

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
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

// A poll that came between a member's join and the news of it counts it among the others. It
// would take half of what it finds alone: the other half comes a poll later.
func TestShare_ItIsNotAnotherOfItself(t *testing.T) {
	store := &takes{}
	r, err := New(Config{Provider: "default", Store: store, Lanes: []Lane{{Target: "default", Broker: memory.New(memory.Config{})}}})
	require.NoError(t, err)
	l := r.each[0]
	l.partitions = 8
	l.member.joined(t.Context(), 1, time.Now().Add(time.Minute))
	life := l.adopt(t.Context())
	l.view.Store(&view{free: 8, others: []MemberState{{ID: 1, Name: r.name, Healthy: true}}})
	require.NoError(t, l.share(t.Context(), life))
	require.Equal(t, 8, store.asked)
}

// takes notes how many partitions it was asked for.
type takes struct {
	Store
	Housekeeping

	asked int
}

func (s *takes) Take(_ context.Context, _ MemberID, _ LaneID, n int) ([]int, error) {
	s.asked = n
	return nil, nil
}
