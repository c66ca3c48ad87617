package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// N1: who renews is never silent, however long its lease and whoever looks; who doesn't is
// after half of it, and that is said at a bounded rate.
func TestWatched_N1_WhoRenewsIsNotSilent(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	begin := time.Date(2026, 1, 2, 17, 0, 0, 0, time.UTC)
	w := watched{lease: 30 * time.Second}
	names := []string{"a-1-00c0ffee", "a-1-00c0ffee", "b-1-00c0ffee", "c-1-00c0ffee"}
	at := func(second int, until map[MemberID]int) *outbox.Silence {
		now := begin.Add(time.Duration(second) * time.Second)
		var others []MemberState
		for i, name := range names {
			m := MemberState{ID: MemberID(i + 1), Name: name, Parts: 10}
			if i == 3 {
				m.Parts = 0 // nobody waits for it
			}
			if s, ok := until[m.ID]; ok {
				m.Until = begin.Add(time.Duration(s) * time.Second)
				others = append(others, m)
			}
		}
		silent := w.look(others, now, now)
		w.say(logger, silent, w.held(others), 1, 64, now)
		return silent
	}
	for s := range 600 {
		require.Nil(t, at(s, map[MemberID]int{1: s/10*10 + 30, 3: s/100*100 + 300, 4: 30}), s)
	}
	require.Empty(t, log.String())

	last := map[MemberID]int{1: 630, 2: 625, 3: 900, 4: 30}
	for s := 600; s < 615; s++ {
		require.Nil(t, at(s, last))
	}
	silent := at(615, last)
	require.Equal(t, &outbox.Silence{Partitions: 20, Processes: []string{"a-1-00c0ffee"}, Until: begin.Add(630 * time.Second), For: 15 * time.Second}, silent)
	require.Equal(t, "a-1-00c0ffee until 17:10:30Z, not heard of for 15s", silent.String())
	for s := 616; s < 630; s++ {
		require.NotNil(t, at(s, last))
	}
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `held="20 of 64 by a-1-00c0ffee until 17:10:30Z, not heard of for 15s"`)
	require.Nil(t, at(630, map[MemberID]int{3: 900}))
}
