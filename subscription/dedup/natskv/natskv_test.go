package natskv_test

import (
	"context"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/subscription/dedup"
	"github.com/waybill-go/waybill/subscription/dedup/deduptest"
	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server for one test.
func serve(t *testing.T) nats.Config {
	t.Helper()
	b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", SyncInterval: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b.Client()
}

func connect(t *testing.T, server nats.Config) jetstream.JetStream {
	t.Helper()
	var options []natsgo.Option
	if server.NKey != "" {
		key, err := natsgo.NkeyOptionFromSeed(server.NKey)
		require.NoError(t, err)
		options = append(options, key)
	}
	nc, err := natsgo.Connect(server.URL, options...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

func open(t *testing.T, server nats.Config) *natskv.Store {
	t.Helper()
	s, err := natskv.Open(t.Context(), connect(t, server), natskv.Config{Bucket: "cards"})
	require.NoError(t, err)
	return s
}

func TestContract_C_35_C_36_S0_15_S0_16(t *testing.T) {
	url := serve(t)
	t.Run("Documents", func(t *testing.T) {
		deduptest.RunDocuments(t, func(t *testing.T) dedup.Documents { return open(t, url) })
	})
	t.Run("Processed", func(t *testing.T) {
		deduptest.RunProcessed(t, func(t *testing.T) dedup.Processed { return open(t, url) })
	})
}

// A bucket that could answer from a replica, or lose something, is refused, with
// the remedy.
func TestOpen_S0_15_RefusesWhatIsReadFromReplicas(t *testing.T) {
	js := connect(t, serve(t))
	plain := jetstream.StreamConfig{
		Name: "KV_cards-processed", Subjects: []string{"$KV.cards-processed.>"}, MaxMsgsPerSubject: 1,
		Discard: jetstream.DiscardNew, AllowRollup: true,
	}
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		"made by CreateKeyValue": {func(c *jetstream.StreamConfig) { c.AllowDirect = true }, "--no-allow-direct"},
		"mirror": {func(c *jetstream.StreamConfig) {
			c.Subjects, c.Mirror = nil, &jetstream.StreamSource{Name: "KV_original"}
		}, "use the original"},
		"in memory":   {func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, "file storage"},
		"discard old": {func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }, "--discard new"},
		"forgets":     {func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "--max-age 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			config := plain
			c.change(&config)
			_, err := js.CreateStream(t.Context(), config)
			require.NoError(t, err)
			_, err = natskv.Open(t.Context(), js, natskv.Config{Bucket: "cards"})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "bucket cards-processed")
			require.NoError(t, js.DeleteStream(t.Context(), config.Name))
		})
	}
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "usual"})
	require.NoError(t, err)
	_, err = natskv.Open(t.Context(), js, natskv.Config{Bucket: "usual"})
	require.ErrorContains(t, err, "nats stream edit KV_usual --no-allow-direct")
}

func TestOpen_WhatItMakes(t *testing.T) {
	js := connect(t, serve(t))
	for range 2 { // the second finds what the first has made
		_, err := natskv.Open(t.Context(), js, natskv.Config{Bucket: "cards", Remember: time.Hour})
		require.NoError(t, err)
	}
	for name, age := range map[string]time.Duration{"KV_cards": 0, "KV_cards-processed": time.Hour} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		require.False(t, config.AllowDirect)
		require.Equal(t, age, config.MaxAge)
		require.Equal(t, jetstream.FileStorage, config.Storage)
	}
	short, err := natskv.Open(t.Context(), js, natskv.Config{Bucket: "short", Remember: time.Second})
	require.NoError(t, err)
	require.NoError(t, short.Add(t.Context(), "id"))
	waittest.Until(t, func() bool {
		has, err := short.Has(t.Context(), "id")
		return err == nil && !has
	})
	for _, bad := range []natskv.Config{{}, {Bucket: "a.b"}, {Bucket: "a", Replicas: 6}, {Bucket: "a", Remember: -1}} {
		_, err := natskv.Open(t.Context(), js, bad)
		require.Error(t, err)
	}
}

// What the server doesn't take is refused by name, and leaves what was there.
func TestSwap_TooLarge(t *testing.T) {
	url := serve(t)
	s := open(t, url)
	revision, err := s.Swap(t.Context(), "card", []byte("small"), "")
	require.NoError(t, err)
	_, err = s.Swap(t.Context(), "card", make([]byte, 9<<20), revision)
	require.ErrorIs(t, err, dedup.ErrTooLarge)
	require.ErrorContains(t, err, "max_payload")
	got, now, err := s.Get(t.Context(), "card")
	require.NoError(t, err)
	require.Equal(t, "small", string(got))
	require.Equal(t, revision, now)

	js := connect(t, url)
	stream, err := js.Stream(t.Context(), "KV_cards")
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.MaxMsgSize = 100
	_, err = js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	_, err = s.Swap(t.Context(), "card", make([]byte, 200), revision)
	require.ErrorIs(t, err, dedup.ErrTooLarge)

	long := strings.Repeat("k", 5000)
	_, err = s.Swap(t.Context(), long, []byte("x"), "")
	require.ErrorIs(t, err, dedup.ErrTooLarge)
	require.ErrorIs(t, s.Add(t.Context(), long), dedup.ErrTooLarge)
	_, err = s.Has(t.Context(), long)
	require.ErrorIs(t, err, dedup.ErrTooLarge)
	_, err = s.Swap(t.Context(), "card", []byte("x"), "another store's")
	require.ErrorContains(t, err, "revision")
}

// A document that somebody deleted can be made again.
func TestSwap_AfterADelete(t *testing.T) {
	url := serve(t)
	s := open(t, url)
	old, err := s.Swap(t.Context(), "card", []byte("first"), "")
	require.NoError(t, err)
	kv, err := connect(t, url).KeyValue(t.Context(), "cards")
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), "card"))
	value, revision, err := s.Get(t.Context(), "card")
	require.NoError(t, err)
	require.Nil(t, value)
	require.Empty(t, revision)
	_, err = s.Swap(t.Context(), "card", []byte("late"), old)
	require.ErrorIs(t, err, dedup.ErrConflict)
	_, err = s.Swap(t.Context(), "card", []byte("second"), "")
	require.NoError(t, err)
}

// Without a server nobody says no.
func TestOutage(t *testing.T) {
	b, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", SyncInterval: time.Minute})
	require.NoError(t, err)
	s := open(t, b.Client())
	require.NoError(t, b.Close(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = s.Has(ctx, "id")
	require.ErrorContains(t, err, `look for "id"`)
	require.Error(t, s.Add(ctx, "id"))
	_, _, err = s.Get(ctx, "card")
	require.ErrorContains(t, err, `get "card"`)
	_, err = s.Swap(ctx, "card", nil, "")
	require.Error(t, err)
	require.NotErrorIs(t, err, dedup.ErrConflict)
}
