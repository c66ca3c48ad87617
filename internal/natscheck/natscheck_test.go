package natscheck_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/natscheck"
)

// What is wrong with a stream is said with what helps; a good one is good.
func TestStreamsAreJudged(t *testing.T) {
	for what, c := range map[string]struct {
		change   func(*jetstream.StreamInfo)
		severity doctor.Severity
		words    string
	}{
		"as it should be":  {func(*jetstream.StreamInfo) {}, doctor.OK, "3 replicas, on disk, messages are kept for ever"},
		"with an age":      {func(s *jetstream.StreamInfo) { s.Config.MaxAge = time.Hour }, doctor.OK, "kept for 1h0m0s"},
		"in memory":        {func(s *jetstream.StreamInfo) { s.Config.Storage = jetstream.MemoryStorage }, doctor.Critical, "it is in memory"},
		"interest":         {func(s *jetstream.StreamInfo) { s.Config.Retention = jetstream.InterestPolicy }, doctor.Critical, "retention is interest"},
		"a work queue":     {func(s *jetstream.StreamInfo) { s.Config.Retention = jetstream.WorkQueuePolicy }, doctor.Critical, "retention is workqueue"},
		"few of a subject": {func(s *jetstream.StreamInfo) { s.Config.MaxMsgsPerSubject = 5 }, doctor.Critical, "max_msgs_per_subject is 5"},
		"sealed":           {func(s *jetstream.StreamInfo) { s.Config.Sealed = true }, doctor.Critical, "it is sealed"},
		"no answers":       {func(s *jetstream.StreamInfo) { s.Config.NoAck = true }, doctor.Critical, "no message ever counts as published"},
		"the old go":       {func(s *jetstream.StreamInfo) { s.Config.MaxMsgs = 100 }, doctor.Warning, "max_msgs is 100, and discard is old"},
		"there is room": {func(s *jetstream.StreamInfo) {
			s.Config.MaxBytes, s.Config.Discard, s.State.Bytes = 100, jetstream.DiscardNew, 80
		}, doctor.OK, ""},
		"nearly full": {func(s *jetstream.StreamInfo) {
			s.Config.MaxBytes, s.Config.Discard, s.State.Bytes = 100, jetstream.DiscardNew, 95
		}, doctor.Critical, "95 of max_bytes 100 are used"},
		"one replica": {func(s *jetstream.StreamInfo) { s.Config.Replicas, s.Cluster = 1, nil }, doctor.Warning, "it has one replica"},
		"no leader":   {func(s *jetstream.StreamInfo) { s.Cluster.Leader = "" }, doctor.Critical, "it has no leader"},
		"one is away": {func(s *jetstream.StreamInfo) { s.Cluster.Replicas[1].Offline = true }, doctor.Warning, "its replicas on c are away"},
	} {
		t.Run(what, func(t *testing.T) {
			s := &jetstream.StreamInfo{
				Config:  jetstream.StreamConfig{Name: "S", Replicas: 3, Storage: jetstream.FileStorage},
				Cluster: &jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{{Name: "b", Current: true}, {Name: "c", Current: true}}},
			}
			c.change(s)
			found := natscheck.Judge(s)
			require.Len(t, found, 1, "%+v", found)
			require.Equal(t, c.severity, found[0].Severity)
			require.Equal(t, "S", found[0].Where)
			require.Contains(t, found[0].What, c.words)
			require.Equal(t, c.severity == doctor.OK, found[0].Remedy == "")
		})
	}
}

func TestAccountsThatAreNearlyFull(t *testing.T) {
	tier := func(used uint64, most int64) jetstream.Tier {
		return jetstream.Tier{Store: used, Limits: jetstream.AccountLimits{MaxStore: most}}
	}
	require.Empty(t, natscheck.JudgeAccount(&jetstream.AccountInfo{Tier: tier(1<<40, -1), Tiers: map[string]jetstream.Tier{"R3": tier(80, 100)}}))
	require.Equal(t, []string{"critical tier R3: 95 of 100 bytes on disk are used: when it is full nothing is published"},
		lines(natscheck.JudgeAccount(&jetstream.AccountInfo{Tiers: map[string]jetstream.Tier{"R3": tier(95, 100)}})))
}

// serve runs a server, and returns a connection to it and a broker.
func serve(t *testing.T) (*nats.Conn, jetstream.JetStream, broker.Broker) {
	t.Helper()
	b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	nc, err := b.Client().Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return nc, js, b
}

// lines are findings that aren't fine.
func lines(all []doctor.Finding) (found []string) {
	for _, f := range all {
		if f.Severity != doctor.OK {
			found = append(found, fmt.Sprintf("%s %s: %s", f.Severity, f.Where, f.What))
		}
	}
	return found
}

func TestLook_SaysWhatIsWrongWithStreamsThatAreNeeded(t *testing.T) {
	nc, js, _ := serve(t)
	create := func(c jetstream.StreamConfig) {
		_, err := js.CreateStream(t.Context(), c)
		require.NoError(t, err)
	}
	create(jetstream.StreamConfig{Name: "all", Subjects: []string{"acme.ordering.>"}, Storage: jetstream.MemoryStorage})
	create(jetstream.StreamConfig{Name: "partner", Subjects: []string{"acme.orders"}, MaxMsgs: 10})
	create(jetstream.StreamConfig{Name: "other", Subjects: []string{"other.ordering.order"}, Storage: jetstream.MemoryStorage})
	payload := int(nc.MaxPayload())
	found := natscheck.Look(t.Context(), nc, natscheck.Needs{
		Prefix: "acme.", Contexts: []string{"ordering", "shipping"}, Topics: []string{"orders", "absent"}, MaxMessage: payload + 1,
	})
	require.Contains(t, found[0].What, "it answers; of the streams that are needed it shows 2")
	require.Equal(t, []string{
		fmt.Sprintf("critical : the server takes messages of %d bytes, and a message may have %d with its headers: larger ones are abandoned", payload, payload+1),
		"warning acme.shipping.>: no stream has a subject of shipping",
		"warning acme.absent: no stream has this subject",
		"critical all: it is in memory: a restart of the server takes messages with it that count as published",
		"warning all: it has one replica: a server that is lost takes messages with it that count as published",
		"warning partner: max_msgs is 10, and discard is old: at the limit it removes messages that nobody has read",
		"warning partner: it has one replica: a server that is lost takes messages with it that count as published",
	}, lines(found))
}

// Commands that were sent to a context which no engine handles are named, and so are those
// whose group runs no more; not those whose group has a member. Whose streams they are in
// doesn't matter.
func TestLook_NamesCommandsThatNobodyHandles(t *testing.T) {
	nc, js, b := serve(t)
	for _, c := range []jetstream.StreamConfig{{Name: "all", Subjects: []string{"acme.>"}}, {Name: "own", Subjects: []string{"ordering.commands"}}} {
		_, err := js.CreateStream(t.Context(), c)
		require.NoError(t, err)
	}
	for _, subject := range []string{"acme.billing.commands", "acme.billing.commands", "acme.billing.charge", "acme.shipping.processes", "ordering.commands"} {
		_, err := js.Publish(t.Context(), subject, []byte("{}"))
		require.NoError(t, err)
	}
	look := func() []string {
		all := natscheck.Look(t.Context(), nc, natscheck.Needs{Prefix: "acme."})
		return lines(all)
	}
	require.Equal(t, []string{
		"warning acme.billing.commands: it has messages for context billing (2), and no group has read it, or none may be seen: nobody handles these commands",
		"warning acme.shipping.processes: it has messages for context shipping (1), and no group has read it, or none may be seen: nobody handles these timers and refusals of processes",
	}, look())

	for _, subject := range []string{"acme.shipping.processes", "acme.billing.commands"} {
		c, err := b.Consume(t.Context(), subject, "group of "+subject)
		require.NoError(t, err)
		m, err := c.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, c.Ack(t.Context(), m...))
		require.NotContains(t, strings.Join(look(), "\n"), subject, "a member may be about to handle it")
		require.NoError(t, c.Close(t.Context()))
	}
	name := func() string {
		s, err := js.Stream(t.Context(), "all")
		require.NoError(t, err)
		for c := range s.ListConsumers(t.Context()).Info() {
			if c.Config.FilterSubject == "acme.billing.commands" {
				return c.Name
			}
		}
		return ""
	}()
	want := "warning acme.billing.commands: messages for context billing wait (1), and no member runs of " + name + ", which has read it: nobody handles these commands"
	require.Eventually(t, func() bool { return slices.Equal([]string{want}, look()) }, 30*time.Second, 100*time.Millisecond)

	_, err := js.PauseConsumer(t.Context(), "all", name, time.Now().Add(time.Hour))
	require.NoError(t, err)
	found := lines(natscheck.Look(t.Context(), nc, natscheck.Needs{Prefix: "acme.", Contexts: []string{"billing"}}))
	require.Contains(t, found[1], "warning "+name+" of stream all: somebody has paused it, for another ")
}
