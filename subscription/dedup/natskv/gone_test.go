package natskv_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

type counter struct{ N int }

// Where one of the two buckets was deleted, the other isn't used beside an empty one: without
// the ids what comes again would take effect twice, without the documents what took effect
// would never be there again. Who runs meanwhile has no effect and says what is gone, and goes
// on by itself where the bucket is back.
func TestABucketThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		says, remedy string
		write        func(*natskv.Store) error
	}{
		"cards-processed": {
			"would take effect twice", "nats kv add cards-processed --ttl 1h0m0s && nats stream edit KV_cards-processed --no-allow-direct",
			func(s *natskv.Store) error { return s.Add(t.Context(), "2") },
		},
		"cards": {
			"effects are gone", "nats stream rm KV_cards-processed",
			func(s *natskv.Store) error { _, err := s.Swap(t.Context(), "a", nil, ""); return err },
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t)
			js := connect(t, server)
			cfg := natskv.Config{Bucket: "cards", Remember: time.Hour}
			store, err := natskv.Open(t.Context(), js, cfg)
			require.NoError(t, err)
			_, err = natskv.Open(t.Context(), js, cfg)
			require.NoError(t, err, "both are empty")
			h, err := dedup.New(dedup.Config[counter]{
				Name: "count", Documents: store, Processed: store, Publisher: memory.New(memory.Config{}),
				Apply: func(_ context.Context, c *counter, _ broker.Message) ([]broker.Message, error) {
					c.N++
					return nil, nil
				},
			})
			require.NoError(t, err)
			require.NoError(t, h.Handle(t.Context(), broker.Message{ID: "1", Key: "a"}))

			kept, err := js.Stream(t.Context(), "KV_"+name)
			require.NoError(t, err)
			require.NoError(t, js.DeleteStream(t.Context(), "KV_"+name))
			_, err = natskv.Open(t.Context(), js, cfg)
			require.ErrorContains(t, err, "bucket "+name+" is gone")
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, c.remedy)
			_, err = js.Stream(t.Context(), "KV_"+name)
			require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "it wasn't made")

			require.ErrorContains(t, h.Handle(t.Context(), broker.Message{ID: "1", Key: "a"}), "bucket "+name+" is gone")
			require.ErrorContains(t, c.write(store), "bucket "+name+" is gone")

			_, err = js.CreateStream(t.Context(), kept.CachedInfo().Config)
			require.NoError(t, err)
			require.NoError(t, h.Handle(t.Context(), broker.Message{ID: "3", Key: "b"}))
			_, err = natskv.Open(t.Context(), js, cfg)
			require.NoError(t, err)
		})
	}
}
