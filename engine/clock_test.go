package engine

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription"
)

// A31. A timer that a handler sets by a clock that is two hours slow rings at once, and the deadline
// of a command is over too late: health and the log say so, until the clock is right.
func TestClock_OneThatIsOffIsAReason(t *testing.T) {
	b := setup(t)
	e, err := New(b.config())
	require.NoError(t, err)
	var shift atomic.Int64
	shift.Store(int64(-2 * time.Hour))
	d := e.databases[0]
	d.clock.now = func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }
	require.NoError(t, e.Start(t.Context()))
	defer func() { require.NoError(t, e.Stop(t.Context())) }()
	require.Len(t, b.logs.with("the clock of this process isn't the database's"), 1, "the log says so when it starts")

	found := e.diagnose(t.Context())
	require.Equal(t, degraded, found.State)
	require.Len(t, found.Reasons, 1)
	require.Equal(t, "clock_off", found.Reasons[0].Code)
	require.Equal(t, "default", found.Reasons[0].Provider)
	require.Contains(t, found.Reasons[0].Text, "the clock of this process is 2h0m0s behind the database's: timers that its handlers set ring that much too early")
	require.Contains(t, found.Reasons[0].Text, "NTP")

	shift.Store(int64(time.Hour))
	require.NoError(t, d.ping(t.Context()))
	require.Contains(t, e.diagnose(t.Context()).Reasons[0].Text, "is 1h0m0s ahead of the database's: timers that its handlers set ring that much too late, and it refuses commands so long before their deadline")
	require.Len(t, b.logs.with("the clock of this process isn't the database's"), 1)

	shift.Store(int64(clockLimit - time.Second))
	require.NoError(t, d.ping(t.Context()))
	require.Empty(t, e.diagnose(t.Context()).Reasons)
	require.Len(t, b.logs.with("the clock of this process is the database's again"), 1)
}

// How long something lasts isn't measured by a clock that is set meanwhile: set back by hours, it
// would keep silent for hours about what stands still; set forward, it would alarm at once.
func TestClock_OneThatIsSetChangesNotHowLongSomethingStandsStill(t *testing.T) {
	for _, by := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		s, begin, after := well(), time.Now(), time.Duration(0)
		w := newWatchdog(slog.New(slog.DiscardHandler))
		w.now = func() time.Time {
			if after == 0 {
				return begin
			}
			return waittest.Set(begin.Add(after), by)
		}
		look := func(at time.Duration) []string {
			after = at
			s.partner(waits(2, at+time.Second))
			s.letters[lane{"default", "parcels"}] = 1
			s.newer = map[lane]subscription.NewerLetters{{"default", "parcels"}: {Count: 1}}
			return codes(w.judge(s))
		}
		require.Empty(t, look(0))
		require.Empty(t, look(settling-time.Second), by)
		require.Equal(t, []string{"dead_letters_newer"}, look(settling), by)
		require.Contains(t, look(stillAfter), "not_moving", by)
	}
}
