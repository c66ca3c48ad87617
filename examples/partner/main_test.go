package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/nats/embedded"
)

func TestUsage(t *testing.T) {
	for args, want := range map[string]int{
		"--help":                              0,
		"":                                    exitUsage,
		"--kafka h:1":                         exitUsage,
		"--kafka h:1 --nats u --topic t":      exitUsage,
		"--nats u --topic t --count -1":       exitUsage,
		"--nats u --topic t more":             exitUsage,
		"--nats u --topic t --number 1":       exitUsage,
		"--kafka 127.0.0.1:1 --topic t":       exitFailed,
		"--nats nats://127.0.0.1:1 --topic t": exitFailed,
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, want, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String(), args)
		require.Empty(t, stdout.String(), args)
	}
}

// It waits for a subject that nobody has used yet, reads from the first message
// on, and ends after as many as were asked for.
func TestNATS_PrintsABodyPerLine(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := embedded.Open(ctx, embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close(context.WithoutCancel(ctx))) }()

	read := func(count string) (code <-chan int, stdout, stderr *bytes.Buffer) {
		ended := make(chan int, 1)
		stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
		go func() {
			ended <- run(ctx, []string{"--nats", server.URL(), "--nkey", server.KeyFile(), "--topic", "partner.orders", "--count", count}, stdout, stderr)
		}()
		return ended, stdout, stderr
	}
	early, stdout, _ := read("2")
	key, err := nats.NkeyOptionFromSeed(server.KeyFile())
	require.NoError(t, err)
	connection, err := nats.Connect(server.URL(), key)
	require.NoError(t, err)
	defer connection.Close()
	stream, err := jetstream.New(connection)
	require.NoError(t, err)
	_, err = stream.CreateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"partner.orders"}})
	require.NoError(t, err)
	for i := range 3 {
		_, err := stream.Publish(ctx, "partner.orders", fmt.Appendf(nil, "{\"n\":\n%d}", i))
		require.NoError(t, err)
	}
	require.Zero(t, <-early)
	require.Equal(t, "{\"n\":0}\n{\"n\":1}\n", stdout.String())

	_, err = stream.Publish(ctx, "partner.orders", []byte("four"))
	require.NoError(t, err)
	late, stdout, stderr := read("0")
	require.Equal(t, exitFailed, <-late)
	require.Equal(t, 3, strings.Count(stdout.String(), "\n"))
	require.Contains(t, stderr.String(), "not JSON")
}
