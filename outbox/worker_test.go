package outbox

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// D2: a call that crashes between a worker's look at doubts and the next time that it
// takes what it was rung for has no other bell.
func TestWorker_D2_ADoubtKeepsTheBell(t *testing.T) {
	w := newWorker(&lane{}, "w")
	w.ring()
	w.rung()
	require.Empty(t, w.bell)

	w.doubting(crashed)
	w.landed(Claim{}, false, 0)
	w.rung()
	require.Len(t, w.bell, 1)
}

// A82, A83: a worker that crashes at once starts again after pauses that double, up to
// half a minute.
func TestWorker_A82_A83_RestartsWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hard, end := context.WithCancel(t.Context())
		var pauses []time.Duration
		l := &lane{p: &Processor{stop: make(chan struct{})}}
		l.log = slog.New(pausing{slog.DiscardHandler, func(d time.Duration) {
			if pauses = append(pauses, d); len(pauses) == 12 {
				end()
				close(l.p.stop)
			}
		}})
		began := time.Now()
		w := newWorker(l, "w")
		w.doubting(unanswered)
		w.run(hard) // there is no store to ask
		require.EqualValues(t, 12, l.crashes.Load())
		require.Equal(t, restartFirst, pauses[0])
		waited := time.Duration(0)
		for i, d := range pauses[1:] {
			waited += pauses[i]
			require.Equal(t, min(2*pauses[i], 30*time.Second), d)
		}
		require.Equal(t, 30*time.Second, pauses[11])
		require.Equal(t, waited, time.Since(began))
	})
}

// pausing is told how long crashed workers wait.
type pausing struct {
	slog.Handler
	note func(time.Duration)
}

func (pausing) Enabled(context.Context, slog.Level) bool { return true }

func (p pausing) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "after" {
			p.note(a.Value.Duration())
		}
		return true
	})
	return nil
}
