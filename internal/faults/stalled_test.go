package faults

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/verdict"
)

// stalled: a process that writes and publishes goes on writing while Kafka takes
// connections and answers nothing. Had a commit to wait for it, each writer would
// commit no more than once. How long commits take is measured by engine's test of S4-21.
func stalled(t *testing.T) {
	lasts := 8 * time.Second
	if long() {
		lasts = 30 * time.Second
	}
	w := newWorldOn(t, ownKafka.up(t), 60, 1<<20)
	e := w.engine(func(c *nodeConfig) {
		c.Outbox.Lease, c.Outbox.PublishTimeout = 20*time.Second, 5*time.Second
		c.Accounts, c.Writers, c.Pause, c.Timed = 60, 4, 20*time.Millisecond, true
	})
	w.publishes(200)
	before := time.Now()
	<-time.After(lasts)
	fault := verdict.Incident{Kind: "silence", From: time.Now()}
	t.Cleanup(func() { ownKafka.signal(t, syscall.SIGCONT) })
	ownKafka.signal(t, syscall.SIGSTOP)
	stalled := time.Now()
	<-time.After(lasts)
	eventually(t, func() bool { return len(e.units(stalled, time.Now())) > 100 }, "units commit")
	over := time.Now()
	published := w.count("outbox WHERE published_at > $1", stalled.Add(lasts/2))
	ownKafka.signal(t, syscall.SIGCONT)
	fault.Until = time.Now().Add(10 * time.Second) // what is out when it comes back may still end late
	w.note(fault)
	e.terminate()

	usual, during := e.units(before, stalled), e.units(stalled, over)
	t.Logf("units in %v: %v before, %v while Kafka was stalled", lasts, usual, during)
	require.Zero(t, published, "nothing was")
	w.engine()
	w.drain()
	w.check()
}

// durations in ascending order.
type durations []time.Duration

func (d durations) at(p float64) time.Duration { return d[int(p*float64(len(d)-1))] }

func (d durations) String() string {
	return fmt.Sprintf("%d with p50 %v, p99 %v and max %v", len(d), d.at(0.5), d.at(0.99), d.at(1))
}

// units are those that a timed writer began in a time.
func (p *process) units(from, to time.Time) (took durations) {
	for _, line := range p.Output() {
		var begin, d int64
		if n, _ := fmt.Sscanf(line, unitTook, &begin, &d); n == 2 && begin >= from.UnixNano() && begin < to.UnixNano() {
			took = append(took, time.Duration(d))
		}
	}
	slices.Sort(took)
	return took
}
