package postgres

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
)

// Where the machine's clock is set back by hours in a pause, statements aren't left unprepared
// for hours.
func TestPause_EndsWhereTheClockIsSetBack(t *testing.T) {
	var p pause
	require.False(t, p.on())
	for left, on := range map[time.Duration]bool{0: false, time.Minute: true} {
		until := waittest.Set(time.Now().Add(left), 2*time.Hour) // as it was before that
		p.until.Store(&until)
		require.Equal(t, on, p.on(), left)
	}
}
