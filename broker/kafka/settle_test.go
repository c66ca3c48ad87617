package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/broker"
)

// kgo gives up all of a topic that a server says is gone, also a batch that was stored
// before. What Kafka said of the batch counts, or it would be published again.
func TestSettle_KafkasWordCounts(t *testing.T) {
	for name, test := range map[string]struct {
		fate fate
		want state
	}{
		"stored":                      {fate{sent: 1, answered: 1}, stored},
		"stored, but an answer lacks": {fate{sent: 2, answered: 1}, failed},
		"stored, after one in doubt":  {fate{sent: 2, answered: 2, unclear: true}, failed},
		"refused":                     {fate{sent: 1, answered: 1, last: kerr.UnknownTopicOrPartition}, failed},
		"not sent":                    {fate{}, failed},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(1<<20, []broker.Message{{ID: "1", Topic: "orders", Key: "a"}})
			r := &c.records[0]
			r.err = kerr.UnknownTopicOrPartition
			(&producer{}).settle(c, 0, ending{account: account{places: map[place]*fate{r.place(): &test.fate}}})
			require.Equal(t, test.want, r.state)
			require.Equal(t, test.want == stored, c.err() == nil)
			_, isFailed := c.failed[0]
			require.Equal(t, test.want == failed, isFailed)
		})
	}
}
