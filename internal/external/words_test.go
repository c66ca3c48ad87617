package external

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// F-45: what a broker refuses leaves no payload and no header's value behind, in
// last_error, the state of a lane, or the log, also with debug switched on.
// S2-24: with that, each publish is a line with id, type, topic and correlation
// id.
func TestWords_F_45_S2_24(t *testing.T) {
	w := newWorld(t, func(c *kafka.Config) { c.MaxMessageBytes = 4096 })
	m := w.units(outbox.Target{Broker: "partner"}, outbox.Target{Broker: "other", Envelope: outbox.CloudEventsBinary})
	e := w.engine(map[string]broker.Broker{"partner": w.kafka, "other": broker.Prefixed(w.nats, "other.")}, m)
	w.run(e)
	marker := "secret-marker "
	// Too large for this Kafka; and with a tenant that would be too large for a header,
	// and is cut where it comes in.
	large := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c-large", Extensions: map[string]string{"x": marker}})
	w.place(large, m, "o-large", strings.Repeat(marker, 500))
	odd := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c-odd", TenantID: strings.Repeat(marker, 5_000)})
	w.place(odd, m, "o-odd", marker)
	fine := domain.WithOrigin(t.Context(), domain.Origin{CorrelationID: "c-fine"})
	w.place(fine, m, "o-fine", marker)

	abandoned := map[string]string{}
	var published outbox.Entry
	for _, row := range w.settled(3 * (4 + 2)) {
		if row.Status == outbox.Abandoned && row.MessageType == "Ordering.OrderPlaced.v1" {
			abandoned[row.AggregateID+" to "+row.TargetBroker] = row.LastError
		}
		if row.Status == outbox.Published && row.AggregateID == "o-fine" && row.TargetBroker == "partner" {
			published = row
		}
		require.NotContains(t, row.LastError, "secret")
		require.LessOrEqual(t, len(row.LastError), 2048)
	}
	require.Contains(t, abandoned["o-large to partner"], "the limit is 4096")
	require.Len(t, abandoned, 1)

	const lines = (4 + 1) + 2*(4+1+1) // one for each row that was published, written when it is settled
	waittest.Until(t, func() bool { return strings.Count(w.log.String(), "msg=published ") >= lines })
	text := w.log.String()
	require.NotContains(t, text, "secret")
	require.Contains(t, text, `msg=published lane=outbox-processor-default-to-partner-external id=`+published.MessageID+
		` type=Ordering.OrderPlaced.v1 topic=ordering.order correlation_id=c-fine`)
	require.Equal(t, lines, strings.Count(text, "msg=published "))
}
