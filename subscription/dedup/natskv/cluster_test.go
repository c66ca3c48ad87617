package natskv_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/deduptest"
	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

// cluster runs three servers, and returns a client of each.
func cluster(t *testing.T) []jetstream.JetStream {
	t.Helper()
	var routes []string
	var servers []*server.Server
	for i := range 3 {
		options := &server.Options{
			ServerName: fmt.Sprintf("s%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT},
			Routes:  server.RoutesFromStr(strings.Join(routes, ",")),
		}
		s, err := server.NewServer(options)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		require.True(t, s.ReadyForConnections(30*time.Second))
		routes = append(routes, "nats://"+s.ClusterAddr().String())
		servers = append(servers, s)
	}
	var clients []jetstream.JetStream
	for _, s := range servers {
		clients = append(clients, connect(t, nats.Config{URL: s.ClientURL()}))
	}
	waittest.Until(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := natskv.Open(ctx, clients[0], natskv.Config{Bucket: "ready", Replicas: 3})
		return err == nil
	})
	return clients
}

// On three replicas, through any of the servers, what was written is read; and
// while leaders change under the workers, every message has its effect once.
func TestCluster_C_35_S0_15_S0_13_ThreeReplicas(t *testing.T) {
	clients := cluster(t)
	var stores []*natskv.Store
	for _, js := range clients {
		s, err := natskv.Open(t.Context(), js, natskv.Config{Bucket: "cards", Replicas: 3})
		require.NoError(t, err)
		stores = append(stores, s)
	}
	next := 0
	open := func() *natskv.Store { next++; return stores[next%len(stores)] }
	deduptest.RunProcessed(t, func(*testing.T) dedup.Processed { return open() })
	deduptest.RunDocuments(t, func(*testing.T) dedup.Documents { return open() })

	type counter struct{ N int }
	sent := memory.New(memory.Config{})
	require.NoError(t, sent.EnsureTopics(t.Context(), "out"))
	defer func() { require.NoError(t, sent.Close(context.Background())) }()
	const messages, entities = 90, 6
	queue := make(chan broker.Message, 2*messages+len(stores))
	var left, running sync.WaitGroup
	for n := range messages {
		for range 2 {
			left.Add(1)
			queue <- broker.Message{ID: fmt.Sprint(n), Topic: "in", Key: fmt.Sprint("entity-", n%entities)}
		}
	}
	for _, s := range stores {
		h, err := dedup.New(dedup.Config[counter]{
			Name: "count", Documents: s, Processed: s, Publisher: sent,
			Apply: func(_ context.Context, c *counter, m broker.Message) ([]broker.Message, error) {
				c.N++
				return []broker.Message{{ID: m.ID, Topic: "out", Key: m.Key, Body: fmt.Append(nil, c.N)}}, nil
			},
		})
		require.NoError(t, err)
		running.Go(func() {
			for m := range queue {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				if h.Handle(ctx, m) != nil {
					queue <- m
				} else {
					left.Done()
				}
				cancel()
			}
		})
	}
	done := make(chan struct{})
	go func() { left.Wait(); close(done) }()
	elections := 0
	for working := true; working; {
		for _, stream := range []string{"KV_cards", "KV_cards-processed"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := clients[0].Conn().RequestMsgWithContext(ctx, natsgo.NewMsg("$JS.API.STREAM.LEADER.STEPDOWN."+stream)); err == nil {
				elections++
			}
			cancel()
		}
		select {
		case <-done:
			working = false
		case <-time.After(50 * time.Millisecond):
		}
	}
	close(queue)
	running.Wait()
	require.Greater(t, elections, 1)

	bodies := map[string]string{}
	for _, m := range sent.Messages("out") {
		if first, again := bodies[m.ID]; again {
			require.Equal(t, first, string(m.Body))
		}
		bodies[m.ID] = string(m.Body)
	}
	require.Len(t, bodies, messages)
	for n := range entities {
		var value []byte
		waittest.Until(t, func() (ok bool) {
			var err error
			value, _, err = stores[0].Get(t.Context(), fmt.Sprint("entity-", n))
			return err == nil
		}, "the last election ends")
		var document struct {
			State  counter
			Outbox map[string]any
		}
		require.NoError(t, json.Unmarshal(value, &document))
		require.Equal(t, messages/entities, document.State.N)
		require.Empty(t, document.Outbox)
	}
}
