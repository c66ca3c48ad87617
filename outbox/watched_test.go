package outbox

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// N1: who renews is never silent, however long its lease and whoever looks; who
// doesn't is after half of it, and that is said at a bounded rate.
func TestWatched_N1_WhoRenewsIsNotSilent(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	begin := time.Date(2026, 1, 2, 17, 0, 0, 0, time.UTC)
	w := watched{mine: []string{"me-1"}, lease: 30 * time.Second}
	at := func(second int, until map[string]int) *Silence {
		now := begin.Add(time.Duration(second) * time.Second)
		m := Membership{Now: now}
		for _, worker := range []string{"a-1-00c0ffee-1", "a-1-00c0ffee-2", "b-1-00c0ffee-1", "me-1"} {
			if s, ok := until[worker]; ok {
				end := begin.Add(time.Duration(s) * time.Second)
				m.Members = append(m.Members, Member{Worker: worker, Partitions: 10, Until: &end})
			}
		}
		silent := w.look(m, now)
		w.say(logger, silent, w.held(m), 1, 64, now)
		return silent
	}
	for s := range 600 {
		require.Nil(t, at(s, map[string]int{"a-1-00c0ffee-1": s/10*10 + 30, "b-1-00c0ffee-1": s/100*100 + 300, "me-1": 30}), s)
	}
	require.Empty(t, log.String())

	last := map[string]int{"a-1-00c0ffee-1": 630, "a-1-00c0ffee-2": 625, "b-1-00c0ffee-1": 900, "me-1": 30}
	for s := 600; s < 615; s++ {
		require.Nil(t, at(s, last))
	}
	silent := at(615, last)
	require.Equal(t, &Silence{Partitions: 20, Processes: []string{"a-1-00c0ffee"}, Until: begin.Add(630 * time.Second), For: 15 * time.Second}, silent)
	require.Equal(t, "a-1-00c0ffee until 17:10:30Z, not heard of for 15s", silent.String())
	for s := 616; s < 630; s++ {
		require.NotNil(t, at(s, last))
	}
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `held="20 of 64 by a-1-00c0ffee until 17:10:30Z, not heard of for 15s"`)
	require.Nil(t, at(630, map[string]int{"b-1-00c0ffee-1": 900}))
}
