package faults

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/outbox"
)

// S3-11, F-32, A56: the network to two partners' Kafka is cut while work goes on.
// Internal messages go on; how fast, before and meanwhile, is in the log, and measured without the
// machine by internal/relay. What is for the partners waits, pays
// nothing, and follows by itself, in the order of each key; and a partner's own
// reader of CloudEvents, in another language, accepts all of it, in both modes.
func TestPartner_S3_11_F_32_A56_AnOutageConcernsNobodyElse(t *testing.T) {
	t.Parallel()
	away, usual := 12*time.Second, 8*time.Second
	if long() {
		away, usual = 2*time.Minute, 30*time.Second
	}
	kafka := environment(t, "WAYBILL_KAFKA")
	w := newWorldOn(t, kafka, 20, 1<<20,
		outbox.Target{Broker: "structured", Envelope: outbox.CloudEvents},
		outbox.Target{Broker: "binary", Envelope: outbox.CloudEventsBinary, Topics: map[string]string{"faults::account": "told"}})
	relay, err := netfault.New(t.Context(), kafka)
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	w.engine(func(n *nodeConfig) {
		n.Partners, n.Outbox.Lease, n.Outbox.PublishTimeout = relay.Address, 30*time.Second, 10*time.Second
	})
	partners := map[string]*process{
		"structured": inPython(t, "--kafka", kafka, "--topic", w.prefix+"structured."+chaos.AccountTopic),
		"binary":     inPython(t, "--kafka", kafka, "--topic", w.prefix+"binary.told"),
	}
	w.drain()
	writer := w.writer(20, 2, 40*time.Millisecond)
	w.publishes(300)

	before := w.window(usual)
	relay.Cut()
	during := w.window(away)
	// A busy machine may need longer for what is to happen meanwhile.
	waiting, tried, paid := 0, 0, 0
	eventually(t, func() bool {
		waiting = w.waiting("l.target <> 'default'")
		tried, paid = w.calls("<> 'default'", during.from)
		return waiting > 100 && tried > 0
	}, "the partners' messages wait")
	eventually(t, func() bool {
		return w.count("outbox WHERE target_broker = 'default' AND created_at > $1::timestamptz AND status = 'published'", during.from) > 100
	}, "internal messages go on")
	require.Zero(t, paid, "nobody pays")
	require.Zero(t, w.count("outbox WHERE status = 'abandoned'"))
	relay.Mend()
	mended := time.Now()
	last := w.strings("SELECT max(seq) FROM outbox")[0]
	eventually(t, func() bool { return w.waiting("seq <= "+last) == 0 }, "the partners' messages follow")
	t.Logf("%d messages waited; the last was published %v after the network was back", waiting, time.Since(mended).Round(10*time.Millisecond))
	writer.terminate()
	w.drain()

	t.Logf("internal messages, before: %+v", w.speed(before))
	t.Logf("internal messages, during: %+v", w.speed(during))
	require.Zero(t, w.count("outbox WHERE status <> 'published'"))

	for name, p := range partners {
		ids := w.strings("SELECT message_id::text FROM outbox WHERE target_broker = $1", name)
		seen := map[string]bool{}
		read := 0
		next := map[string]int64{} // by account: the number of its last event
		eventually(t, func() bool {
			lines := p.Output()
			for _, line := range lines[read:] {
				var e struct {
					Attributes struct{ ID, Subject string }
					Data       chaos.Moved
				}
				require.NoError(t, json.Unmarshal([]byte(line), &e), line)
				if a := e.Attributes; !seen[a.ID] {
					require.Equal(t, next[a.Subject]+1, e.Data.Number, "%s: %s comes in turn", name, a.Subject)
					seen[a.ID], next[a.Subject] = true, e.Data.Number
				}
			}
			read = len(lines)
			return len(seen) == len(ids)
		}, "%s hears of everything", name)
		for _, id := range ids {
			require.True(t, seen[id])
		}
		p.terminate()
	}
}

// B11: a process starts while a partner's Kafka is away. Its own messages go on,
// what is for the partner waits unpaid, and follows by itself when the partner comes,
// whose topic is made then.
func TestPartner_B11_AwayAtTheStart(t *testing.T) {
	t.Parallel()
	kafka := environment(t, "WAYBILL_KAFKA")
	w := newWorldOn(t, kafka, 20, 1<<20, outbox.Target{Broker: "partner"})
	relay, err := netfault.New(t.Context(), kafka)
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	relay.Cut()
	began := w.now()
	w.engine(func(n *nodeConfig) { n.Partners = relay.Address })
	eventually(t, func() bool {
		return w.waiting("l.target = 'default'") == 0
	}, "its own messages go on")
	tried, paid := 0, 0
	eventually(t, func() bool {
		tried, paid = w.calls("= 'partner'", began)
		return tried > 0
	}, "the partner is tried")
	require.Zero(t, paid, "nobody pays")
	require.Equal(t, 20, w.waiting("l.target = 'partner'"))
	relay.Mend()
	w.drain()
	require.Zero(t, w.count("outbox WHERE status <> 'published'"))
}

// inPython starts the partner that is written in Python.
func inPython(t *testing.T, args ...string) *process {
	t.Helper()
	python, err := exec.Command("../../scripts/python").Output()
	require.NoError(t, err)
	source, err := filepath.Abs("../../examples/partner/python/partner.py")
	require.NoError(t, err)
	return launch(t, "partner", exec.Command(strings.TrimSpace(string(python)), append([]string{source}, args...)...))
}

// window is a time by the database's clock.
type window struct{ from, until string }

// window waits for d.
func (w *world) window(d time.Duration) window {
	w.t.Helper()
	from := w.now()
	<-time.After(d)
	return window{from, w.now()}
}

// speed is how fast internal messages were that were written in a window.
type speed struct{ PerSecond, Median, P95 float64 }

func (w *world) speed(in window) (s speed) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(`SELECT count(*) / extract(epoch FROM $2::timestamptz - $1::timestamptz),
			percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM published_at - created_at)),
			percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM published_at - created_at))
		FROM outbox WHERE target_broker = 'default' AND created_at BETWEEN $1::timestamptz AND $2::timestamptz`, in.from, in.until).Scan(&s.PerSecond, &s.Median, &s.P95))
	return s
}
