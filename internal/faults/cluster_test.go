package faults

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/verdict"
)

// O1, S1-12, C-65: three servers of Kafka, three replicas of which two have to be in sync.
// Leaders move from server to server, each server is killed with -9 and comes back, and
// then two are gone at once, and an engine with them: while writers go on, and engines
// publish and consume. With one server gone all goes on; with two rows wait, pay
// nothing, and health names the topic; or the broker, where nobody is left to change who
// leads. Nothing is lost, invented, out of order or
// abandoned, and each event has its effect once. It takes minutes and gigabytes, which is why
// it needs WAYBILL_LONG.
func TestCluster_O1_S1_12_C_65_ServersOfKafkaComeAndGo(t *testing.T) {
	if !long() {
		return
	}
	t.Run("with a controller apart", func(t *testing.T) { comeAndGo(t, true) })
	t.Run("each is a controller, too", func(t *testing.T) { comeAndGo(t, false) })
}

func comeAndGo(t *testing.T, apart bool) {
	c := kafkatest.Start(t, kafkatest.Config{Brokers: 3, Apart: apart})
	w := newWorldOn(t, strings.Join(c.Addresses(), ","), 40, 1<<20)
	w.createEffects()
	engine := func() *process {
		return w.node(consuming, lease(10*time.Second), func(n *nodeConfig) { n.Serve, n.Outbox.PublishTimeout = true, 5*time.Second })
	}
	first, second := engine(), engine()
	first.until("running", 1)
	second.until("running", 1)
	writer := w.writer(40, 2, 60*time.Millisecond)
	topic := w.prefix + chaos.AccountTopic
	w.publishes(200)

	for id := 1; id <= 3; id++ {
		w.disturb("leader move", func() {
			c.Lead(topic, id)
			w.publishes(200)
		})
	}
	for id := 1; id <= 3; id++ {
		w.disturb("lost server", func() {
			c.Lead(topic, id)
			c.Kill(id)
			w.publishes(300)
			c.Up(id)
		})
		w.publishes(100)
	}
	w.disturb("lost pair", func() {
		c.Kill(2)
		c.Kill(3)
		w.kill(second)
		second = engine()
		if apart {
			w.report("topics_down", chaos.AccountTopic, first, second)
		} else { // Nobody can say any more that replicas are missing.
			w.report("breaker_open", "default", first, second)
		}
		w.stands(200)
		require.Zero(t, w.count("outbox_queue WHERE attempts > 0"), "nobody pays")
		require.Zero(t, w.count("outbox WHERE status = 'abandoned'"))
		c.Up(2)
		begin := time.Now()
		w.publishes(300)
		t.Logf("with two of three it goes on %v after the second is back", time.Since(begin))
		c.Up(3)
	})
	writer.terminate()
	w.drain()
	eventually(t, func() bool { return w.count("effects") == w.count("outbox") }, "all have taken effect")
	w.inOrder()
	r := w.check()
	require.Zero(t, r.Abandoned+r.Paid)
	for _, e := range []*process{first, second} {
		e.until("running", 1)
		e.terminate()
	}
}

// O1: engines that publish in transactions, while leaders move, those of the transactions and
// of the marks among them, and each server is killed and comes back; and then Kafka forgets
// the ids of engines that have nothing to do. Each message is there once for who reads what
// is committed, in order, and none has paid.
// Conformance: C-65.
func TestCluster_O1_S1_12_TransactionsWhileServersComeAndGo(t *testing.T) {
	if !long() {
		return
	}
	c := kafkatest.Start(t, kafkatest.Config{Brokers: 3, Apart: true, Settings: []string{
		"transactional.id.expiration.ms=8000", "transaction.remove.expired.transaction.cleanup.interval.ms=500",
	}})
	w := newWorldOn(t, strings.Join(c.Addresses(), ","), 40, 1<<20)
	engine := func() *process {
		return w.engine(exactly(""), lease(10*time.Second), func(n *nodeConfig) { n.Outbox.PublishTimeout = 5 * time.Second })
	}
	first, second := engine(), engine()
	writer := w.writer(40, 2, 60*time.Millisecond)
	topics := []string{w.prefix + chaos.AccountTopic, "__transaction_state", "__consumer_offsets"}
	w.publishes(200)
	lead := func(id int) {
		for _, topic := range topics {
			c.Lead(topic, id)
			w.publishes(50)
		}
	}
	for id := 1; id <= 3; id++ {
		w.disturb("leader move", func() { lead(id) })
	}
	for id := 1; id <= 3; id++ {
		w.disturb("lost server", func() {
			lead(id)
			c.Kill(id)
			w.publishes(300)
			c.Up(id)
		})
		w.publishes(100)
	}
	for range 2 {
		writer.terminate()
		w.drain()
		eventually(t, func() bool {
			known, err := c.Admin().ListTransactions(t.Context(), nil, nil)
			require.NoError(t, err)
			return len(known) == 0
		}, "Kafka has forgotten all ids")
		writer = w.writer(40, 2, 60*time.Millisecond)
		w.publishes(200)
	}
	writer.terminate()
	w.drain()
	first.terminate()
	second.terminate()
	r := w.check()
	require.Zero(t, r.Duplicates)
	require.Zero(t, r.Abandoned+r.Paid)
}

// disturb notes for the checker that Kafka is not as it should be, while do runs.
func (w *world) disturb(kind string, do func()) {
	w.t.Helper()
	fault := verdict.Incident{Kind: kind, From: time.Now()}
	do()
	fault.Until = time.Now().Add(5 * time.Second) // what is out may still end late
	w.note(fault)
	w.t.Logf("%s: %v", kind, time.Since(fault.From))
}

// stands waits until so many rows wait, and nothing more is published.
func (w *world) stands(rows int) {
	w.t.Helper()
	before := w.published()
	eventually(w.t, func() bool { return w.waiting() > rows }, "rows wait")
	require.Equal(w.t, before, w.published())
}

// report waits until the health of one of these nodes has a reason that names something:
// who has no such rows in its partitions doesn't know.
func (w *world) report(code, name string, nodes ...*process) {
	w.t.Helper()
	eventually(w.t, func() bool {
		for _, p := range nodes {
			for _, r := range p.health() {
				if r.Code == code && strings.Contains(r.Text, name) {
					w.t.Logf("%s says %s: %s", p.Name, code, r.Text)
					return true
				}
			}
		}
		return false
	}, "health says %s of %s", code, name)
}

// reason is why a node isn't healthy.
type reason struct{ Code, Text string }

// health is what a node says, none before it runs.
func (p *process) health() []reason {
	p.t.Helper()
	var address string
	for _, line := range p.Output() {
		if a, ok := strings.CutPrefix(line, serves); ok {
			address = a
		}
	}
	if address == "" {
		return nil
	}
	answer, err := http.Get("http://" + address + "/api/health")
	require.NoError(p.t, err)
	defer answer.Body.Close()
	var d struct{ Reasons []reason }
	require.NoError(p.t, json.NewDecoder(answer.Body).Decode(&d))
	return d.Reasons
}
