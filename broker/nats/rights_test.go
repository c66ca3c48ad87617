package nats_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// B9: the users of the guide have the rights that a sender and a reader need.
func TestRights_TheGuidesUsersHaveWhatTheyNeed(t *testing.T) {
	t.Parallel()
	url := guideServer(t)
	ordering := openQuick(t, url("ordering"))
	require.NoError(t, ordering.EnsureTopics(t.Context(), topic))
	publish(t, ordering, 0, 2)

	billing := openQuick(t, url("billing"))
	join := func() broker.Consumer {
		c, err := billing.Consume(t.Context(), topic, "billing")
		require.NoError(t, err)
		return c
	}
	c := join()
	got := receive(t, c, 2)
	require.NoError(t, c.Ack(t.Context(), got[0]))
	require.NoError(t, c.Close(t.Context())) // gives the other one back
	again := join()
	requireBodies(t, 1, receive(t, again, 1))
	lags, err := again.(broker.Lagging).Lag(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, lags)

	require.ErrorContains(t, failure(t, billing, message("a", 3)), "not authorised for subject ordering.order")
	_, err = ordering.Consume(t.Context(), topic, "billing")
	require.ErrorIs(t, err, natsgo.ErrPermissionViolation)
	require.ErrorContains(t, ordering.EnsureTopics(t.Context(), "other"), "give the user that right, or have somebody make the stream")
}

// guideConf is the server's configuration that the guide shows.
func guideConf(t *testing.T) string {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guides/nats-in-production.md")
	require.NoError(t, err)
	_, conf, found := strings.Cut(string(guide), "```text\nauthorization {")
	require.True(t, found)
	conf, _, _ = strings.Cut(conf, "```")
	return "authorization {" + conf
}

// guideServer is one with the guide's users, and its address for each of them.
func guideServer(t *testing.T) (url func(user string) string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:-1\"\njetstream { store_dir: \""+dir+"\" }\n"+guideConf(t)), 0o600))
	options, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return func(user string) string {
		return strings.Replace(s.ClientURL(), "nats://", "nats://"+user+":change-me@", 1)
	}
}
