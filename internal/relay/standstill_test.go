package relay

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A transaction is named that was there all the time, and not one that has come since the
// last look, however long ago that was.
func TestStandstill_NamesWhoWasThereAllTheTime(t *testing.T) {
	var said bytes.Buffer
	log, now := slog.New(slog.NewTextHandler(&said, nil)), time.Now()
	var s standstill
	s.note(log, 7, []string{"1/1"}, now)
	s.note(log, 7, []string{"2/1"}, now.Add(time.Hour))
	require.Empty(t, said.String(), "another one, after an idle hour")
	s.note(log, 7, []string{"2/1", "3/1"}, now.Add(time.Hour+standstillAfter))
	require.Contains(t, said.String(), "transactions=[2/1] since=1m0s")
}
