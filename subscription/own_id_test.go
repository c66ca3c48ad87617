package subscription_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
)

// A Format whose id is the broker's, as the message has none: a replay reads it, too, and
// so does what waited behind the message, whatever bytes their key has.
func TestFormat_TheBrokersIDIsKept(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		var mended atomic.Bool
		s := w.breaking(&mended)
		s.Inbound.Format = func(m broker.Message) (subscription.Incoming, error) {
			return subscription.Incoming{Metadata: domain.Metadata{ID: m.ID, Type: placedV1}, Data: m.Body}, nil
		}
		const key = "k\xff\x00"
		var want []string
		for i, note := range []string{"bad", "1", "2", "3"} {
			id := fmt.Sprint("payments/0/", i)
			w.publish(broker.Message{ID: id, Topic: topic, Key: key, Headers: map[string]string{"id": "another"}, Body: fmt.Appendf(nil, `{"order_id":"o","note":%q}`, note)})
			want = append(want, id)
		}
		_, _ = w.start(s, w.broker)
		w.until(w.acknowledged("shipping"), "all are set aside")
		mended.Store(true)
		w.exec("UPDATE dead_letters SET status = 'replay', replays = replays + 1 WHERE status = 'parked'")
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status IN ('held', 'replay')") == 0
		}, "the key goes on")
		var ids []string
		require.NoError(t, w.provider.Reader().NewRaw("SELECT message_id FROM effects ORDER BY n").Scan(context.Background(), &ids))
		require.Equal(t, want, ids, "%+v", w.parked())
	})
}
