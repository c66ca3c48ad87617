package faults

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chance is the run's source of randomness. WAYBILL_SEED sets it.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("WAYBILL_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("WAYBILL_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// victim is a process that the monkey plays with. There is always one of it,
// though it may be dead or stopped for a while.
type victim struct {
	process *process
	restart func() *process
	next    time.Time // when something happens to it again
	stopped bool
	dead    bool
}

// D7, A41, S3-07, S3-19, F-05, F-06, F-12, F-13, F-17, F-25, S1-23, S1-24, C-91
// to C-93, C-95, C-96: writers that meet on the same accounts, and engines, in
// processes of their own that are killed and stopped at random: nothing is lost,
// nothing is invented, every key's events come first in their order, and each
// event that comes twice was out when its engine was killed or had lost its
// lease.
// Conformance: C-92, C-93, C-95, C-96, S1-23, S1-24.
func TestChaos_D7_A41_S3_07_S3_19_F_05_F_06_F_12_F_13_F_17_F_25(t *testing.T) {
	t.Parallel()
	random := chance(t)
	const accounts = 50
	lasts := 18 * time.Second
	if long() {
		lasts = 3 * time.Minute
	}
	w := newWorld(t, accounts)
	engine := func() *process {
		return w.node(func(c *nodeConfig) {
			c.Outbox.Lease, c.Trap.Delay = 3*time.Second, 60*time.Millisecond
		})
	}
	writer := func() *process { return w.writer(accounts, 4, 40*time.Millisecond) }
	var victims []*victim
	for _, restart := range []func() *process{engine, engine, engine, engine, writer, writer} {
		victims = append(victims, &victim{process: restart(), restart: restart})
	}
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(random.Int64N(int64(to-from))) }
	for _, v := range victims {
		v.process.until("running", 1)
		v.next = time.Now().Add(between(0, 3*time.Second))
	}
	// On a busy machine the first kills and stops may hit none that has rows.
	begin := time.Now()
	for ; time.Since(begin) < lasts || w.count("witness WHERE lost") == 0; <-time.After(tick) {
		require.Less(t, time.Since(begin), lasts+patience)
		for _, v := range victims {
			if time.Now().Before(v.next) {
				continue
			}
			switch {
			case v.stopped:
				w.resume(v.process)
				v.stopped = false
			case v.dead:
				v.process, v.dead = v.restart(), false
			case random.IntN(2) == 0:
				w.kill(v.process)
				v.dead = true
			default:
				w.pause(v.process)
				v.stopped = true
			}
			v.next = time.Now().Add(between(200*time.Millisecond, 4*time.Second))
			if v.stopped {
				v.next = time.Now().Add(between(100*time.Millisecond, 9*time.Second))
			}
		}
	}
	for _, v := range victims {
		switch {
		case v.stopped:
			w.resume(v.process)
		case v.dead:
			v.process = v.restart()
		}
	}
	for _, v := range victims[4:] {
		v.process.until("running", 1)
		v.process.terminate()
	}
	w.drain()
	r := w.check()
	require.Positive(t, r.Incidents["kills"])
	require.Positive(t, r.Incidents["stops"])
	require.Positive(t, r.Taken)
	for _, v := range victims[:4] {
		v.process.until("running", 1)
		v.process.terminate()
	}
}

// Ten times kill -9 in a row, each with rows in flight, and nothing is abandoned:
// they had killed nobody.
func TestKill_TenTimesInARow(t *testing.T) {
	t.Parallel()
	random := chance(t)
	w := newWorld(t, 40)
	slow := func(c *nodeConfig) {
		c.Outbox.Lease, c.Trap.Delay = 2*time.Second, 30*time.Millisecond
	}
	writer := w.writer(40, 2, 30*time.Millisecond)
	writer.until("running", 1)
	for range 10 {
		published := w.published()
		p := w.engine(slow)
		lives := time.After(time.Duration(500+random.IntN(1000)) * time.Millisecond)
		<-lives
		// What was in a dead one's hand goes first, and alone: a row that is in five of them is abandoned.
		eventually(t, func() bool {
			return w.published() > published && w.inHand(p) > 0
		}, "it has published, and rows are in flight")
		w.kill(p)
	}
	writer.terminate()
	w.engine(slow)
	w.drain()
	r := w.check()
	require.Equal(t, 10, r.Incidents["kills"])
	require.Positive(t, r.Taken)
	require.Zero(t, r.Abandoned)
}
