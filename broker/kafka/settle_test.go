package kafka

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

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

// A batch's numbers begin where an earlier one's end, also where they begin again from 0.
func TestNumbers_Reach(t *testing.T) {
	earlier := numbers{producer: 7, epoch: 1, first: 10, count: 5}
	last := numbers{producer: 7, epoch: 1, first: math.MaxInt32 - 1, count: 5} // 2147483646, 2147483647, 0, 1, 2
	for name, test := range map[string]struct {
		later, earlier numbers
		want           bool
	}{
		"the next":         {numbers{7, 1, 15, 1}, earlier, false},
		"further on":       {numbers{7, 1, 1000, 1}, earlier, false},
		"the same":         {earlier, earlier, true},
		"its last":         {numbers{7, 1, 14, 1}, earlier, true},
		"from 0":           {numbers{7, 1, 0, 1}, earlier, true},
		"another epoch":    {numbers{7, 2, 0, 1}, earlier, false},
		"another producer": {numbers{8, 1, 0, 1}, earlier, false},
		"behind the turn":  {numbers{7, 1, 3, 1}, last, false},
		"at the turn":      {numbers{7, 1, 2, 1}, last, true},
		"before the turn":  {numbers{7, 1, math.MaxInt32, 1}, last, true},
	} {
		require.Equal(t, test.want, test.later.reach(test.earlier), name)
	}
}

// A transaction isn't ended before kgo knows of each partition that it has sent to. Shown
// with kgo's store of a new topic's partitions held back by 300 ms: without this wait,
// TestTransact fails in nine places.
func TestKnown_WaitsForEachPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCall(1<<20, []broker.Message{{ID: "1", Topic: "orders", Key: "a"}, {ID: "2", Topic: "bills", Key: "a"}, {ID: "3", Topic: "gone", Key: "a"}})
		asked := map[string]int{}
		leader := func(topic string, _ int32) (int32, int32, error) {
			asked[topic]++
			switch {
			case topic == "gone":
				return -1, -1, kerr.LeaderNotAvailable
			case asked[topic] < 4:
				return -1, -1, nil
			}
			return 1, 0, nil
		}
		require.NoError(t, c.known(t.Context(), leader))
		require.Equal(t, map[string]int{"orders": 4, "bills": 4, "gone": 1}, asked)

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("too late"))
		defer cancel()
		require.ErrorContains(t, c.known(ctx, func(string, int32) (int32, int32, error) { return -1, -1, nil }), "too late")
	})
}
