package external

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// A topic that the partner's broker can't have ends the start, with broker, topic
// and remedy.
func TestStart_ATopicThatTheBrokerRefuses(t *testing.T) {
	w := newWorld(t)
	for kind, c := range map[string]struct {
		broker broker.Broker
		topic  string
		want   string
	}{
		"kafka, a space": {
			w.kafka, "the orders",
			`engine: broker "partner": create topics ["the orders"] behind topic_prefix "` + w.prefix + `": kafka: "` + w.prefix + `the orders" is no topic name: use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-'`,
		},
		"kafka, a foreign letter": {w.kafka, "aufträge", `aufträge" is no topic name: use up to 249 of`},
		"nats, a wildcard": {
			w.nats, "orders.*",
			`engine: broker "partner": create topics ["orders.*"]: nats: topic "orders.*": is no NATS subject: use words with single dots between, without white space, slashes, * or >, and no $ in front`,
		},
		"nats, a dot at the end": {w.nats, "orders.", `nats: topic "orders.": is no NATS subject`},
	} {
		t.Run(kind, func(t *testing.T) {
			m := w.units(outbox.Target{Broker: "partner", Topics: map[string]string{"ordering::order": c.topic}})
			err := w.engine(map[string]broker.Broker{"partner": c.broker}, m).Start(t.Context())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Kafka itself refuses a name that it takes for another topic's.
func TestStart_ATopicThatCollides(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.kafka.EnsureTopics(t.Context(), "the.orders"))
	m := w.units(outbox.Target{Broker: "partner", Topics: map[string]string{"ordering::order": "the_orders"}})
	err := w.engine(map[string]broker.Broker{"partner": w.kafka}, m).Start(t.Context())
	require.ErrorContains(t, err, `engine: broker "partner": create topics ["the_orders"] behind topic_prefix "`+w.prefix+`": kafka: topics: `+w.prefix+"the_orders: ")
	require.ErrorContains(t, err, "collides with existing topic")
}
