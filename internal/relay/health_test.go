package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// O4: a sick member tries with one partition after 30 s. If there is nothing to send it
// goes on with another one, so that it is healthy again once the broker is back, however
// few partitions have rows.
func TestHealth_O4_ATrialWithNothingToSendMovesOn(t *testing.T) {
	var h health
	now := time.Now()
	share := func() int { return h.share(now, 64, 1, 1, 0) }
	wait := func() {
		at, ok := h.wakes()
		require.True(t, ok)
		now = at
	}
	h.unanswered(now, true, "no answer")
	require.Zero(t, share())
	wait()
	require.Equal(t, 1, share(), "it tries")
	healthy, trouble := h.state()
	require.False(t, healthy)
	require.Empty(t, trouble)

	for range 3 {
		wait()
		require.Zero(t, share(), "it has learnt nothing")
		_, trouble = h.state()
		require.Equal(t, "no answer", trouble)
		require.Zero(t, share())
		wait()
		require.Equal(t, 1, share(), "it tries another one")
	}
	h.unanswered(now, false, "still none")
	begin := now
	require.Zero(t, share())
	wait()
	require.Equal(t, 2*trialFirst, now.Sub(begin), "what was tried in vain is tried later")
	require.Equal(t, 1, share())
	require.True(t, h.answered())
	require.Equal(t, 32, share())
}

// While all are sick nobody tries for others, and whoever is answered first doesn't keep
// the others from trying at once.
func TestHealth_O4_AnOutageForAllPutsNoTrialOff(t *testing.T) {
	var h health
	now := time.Now()
	for range 20 {
		h.unanswered(now, false, "no answer")
		now = now.Add(8 * time.Second)
		require.Equal(t, 32, h.share(now, 64, 1, 0, 0))
	}
	require.Equal(t, 1, h.share(now, 64, 1, 1, 0), "another one was answered")
}
