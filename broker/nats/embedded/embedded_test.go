package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/internal/adaptertest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, cfg embedded.Config) *embedded.Broker {
	t.Helper()
	b, err := embedded.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.Background())) })
	return b
}

// TestConformance runs the first connection on the server itself, and further
// ones beside it as plain clients.
func TestConformance(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var running *embedded.Broker
	adaptertest.Run(t, "broker/nats/embedded", brokertest.Config{
		Open: func(t *testing.T) broker.Broker {
			mu.Lock()
			defer mu.Unlock()
			if running != nil {
				b, err := nats.Open(t.Context(), running.Client())
				require.NoError(t, err)
				return b
			}
			var err error
			running, err = embedded.Open(t.Context(), embedded.Config{Dir: dir, Listen: "127.0.0.1:0"})
			require.NoError(t, err)
			return closer{running, func() {
				mu.Lock()
				defer mu.Unlock()
				running = nil
			}}
		},
		TooLarge: 9 << 20,
	})
}

type closer struct {
	broker.Broker
	closed func()
}

func (c closer) Close(ctx context.Context) error {
	defer c.closed()
	return c.Broker.Close(ctx)
}

func message(key string, n int) broker.Message {
	return broker.Message{
		ID: fmt.Sprintf("%s-%d", key, n), Topic: "ordering.order", Key: key,
		Headers: map[string]string{"type": "T"}, Body: []byte(strconv.Itoa(n)),
	}
}

// S9: whoever connects needs the key, which its owner alone can read.
func TestListensOnLoopbackToWhoHasTheKey_S9(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	b := open(t, embedded.Config{Dir: dir, Listen: "127.0.0.1:0"})
	require.True(t, strings.HasPrefix(b.URL(), "nats://127.0.0.1:"), b.URL())
	require.Equal(t, filepath.Join(dir, "client.nk"), b.KeyFile())

	_, err := natsgo.Connect(b.URL())
	require.ErrorIs(t, err, natsgo.ErrAuthorization)
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := other.PublicKey()
	require.NoError(t, err)
	_, err = natsgo.Connect(b.URL(), natsgo.Nkey(public, other.Sign))
	require.ErrorIs(t, err, natsgo.ErrAuthorization)
	_, err = nats.Open(t.Context(), nats.Config{URL: b.URL()})
	require.ErrorIs(t, err, natsgo.ErrAuthorization)

	key, err := natsgo.NkeyOptionFromSeed(b.KeyFile())
	require.NoError(t, err)
	nc, err := natsgo.Connect(b.URL(), key)
	require.NoError(t, err)
	defer nc.Close()
	received := make(chan *natsgo.Msg, 1)
	_, err = nc.ChanSubscribe("ordering.order", received)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())

	require.NoError(t, b.EnsureTopics(t.Context(), "ordering.order"))
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", 1)}))
	m := <-received
	require.Equal(t, "1", string(m.Data))
	require.Equal(t, "a", m.Header.Get("key"))
	require.Equal(t, "T", m.Header.Get("type"))
}

// S9: nobody asked for a listener, so there is none, and no key.
func TestServesThisProcessAloneUnlessAsked_S9(t *testing.T) {
	dir := t.TempDir()
	b := open(t, embedded.Config{Dir: dir})
	require.Empty(t, b.URL())
	require.Empty(t, b.KeyFile())
	require.NoFileExists(t, filepath.Join(dir, "client.nk"))
	require.NoError(t, b.EnsureTopics(t.Context(), "ordering.order"))
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", 1)}))
}

// S9: what is in the data directory is its owner's alone.
func TestDataIsItsOwnersAlone_S9(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	b := open(t, embedded.Config{Dir: dir, Listen: "127.0.0.1:0"})
	require.NoError(t, b.EnsureTopics(t.Context(), "ordering.order"))
	require.NoError(t, b.Publish(t.Context(), []broker.Message{message("a", 1)}))
	_, err := b.Consume(t.Context(), "ordering.order", "group")
	require.NoError(t, err)
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s: %v", path, info.Mode())
		return nil
	}))
}

// S9: the key stays, so that those who have it can connect again. One that others
// may have read isn't used.
func TestKeyIsKeptAndKeptPrivate_S9(t *testing.T) {
	cfg := embedded.Config{Dir: t.TempDir(), Listen: "localhost:0"}
	b := open(t, cfg)
	first, err := os.ReadFile(b.KeyFile())
	require.NoError(t, err)
	require.NoError(t, b.Close(t.Context()))
	b = open(t, cfg)
	second, err := os.ReadFile(b.KeyFile())
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, b.Close(t.Context()))

	file := filepath.Join(cfg.Dir, "client.nk")
	require.NoError(t, os.Chmod(file, 0o644))
	_, err = embedded.Open(t.Context(), cfg)
	require.ErrorContains(t, err, "mode 0644")
	require.NoError(t, os.Chmod(file, 0o600))
	require.NoError(t, os.WriteFile(file, []byte("no key"), 0o600))
	_, err = embedded.Open(t.Context(), cfg)
	require.ErrorContains(t, err, "remove the file")
	require.NotContains(t, err.Error(), "no key")
	require.NoError(t, os.Remove(file))
	open(t, cfg)
}

func TestDirectoryHasOneServer(t *testing.T) {
	dir := t.TempDir()
	b := open(t, embedded.Config{Dir: dir})
	_, err := embedded.Open(t.Context(), embedded.Config{Dir: dir})
	require.ErrorContains(t, err, "another server has it")
	require.NoError(t, b.Close(t.Context()))
	open(t, embedded.Config{Dir: dir})
}

func TestPortInUseIsAnError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	dir := t.TempDir()
	_, err = embedded.Open(t.Context(), embedded.Config{Dir: dir, Listen: taken.Addr().String()})
	require.ErrorContains(t, err, "address already in use")
	open(t, embedded.Config{Dir: dir}) // The directory is free again.
}

func TestUnusableDirectoryIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := embedded.Open(t.Context(), embedded.Config{Dir: file})
	require.ErrorContains(t, err, "data directory "+file+" can't be made; correct embedded")
}

func TestConfigErrorsComeAtOnce(t *testing.T) {
	for _, address := range []string{"4222", "0.0.0.0:4222", ":4222", "192.0.2.1:0", "example.org:4222", "127.0.0.1:x"} {
		_, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: address})
		require.ErrorContains(t, err, "set it to an address of the loopback interface", address)
	}
	_, err := embedded.Open(t.Context(), embedded.Config{Listen: "x", MaxAge: -3, SyncInterval: -1})
	for _, what := range []string{"data directory is missing", `listen is "x"`, "max_age is -3ns", "sync_interval is -1ns"} {
		require.ErrorContains(t, err, what)
	}
}

func TestLogsQuietly(t *testing.T) {
	var out bytes.Buffer
	b := open(t, embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&out, nil))})
	require.NoError(t, b.Close(t.Context()))
	require.Empty(t, out.String())
}

// settings are what the configuration file says.
type settings string

func (s settings) Decode(into any) error {
	d := yaml.NewDecoder(strings.NewReader(string(s)))
	d.KnownFields(true)
	return d.Decode(into)
}

func TestFromSettings(t *testing.T) {
	dir := t.TempDir()
	b, err := embedded.FromSettings(t.Context(), settings("embedded: "+dir))
	require.NoError(t, err)
	require.Empty(t, b.(*embedded.Broker).URL())
	require.NoError(t, b.Close(t.Context()))
	b, err = embedded.Listening("127.0.0.1:0")(t.Context(), settings("embedded: "+dir))
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	server := b.(*embedded.Broker).Client()

	client, err := embedded.FromSettings(t.Context(), settings(fmt.Sprintf("{url: '%s', nkey: '%s'}", server.URL, server.NKey)))
	require.NoError(t, err)
	require.NoError(t, client.EnsureTopics(t.Context(), "ordering.order"))
	require.NoError(t, client.Close(t.Context()))

	for file, remedy := range map[string]string{
		"{}":                                     "set either embedded",
		"{embedded: ./data, exactly_once: true}": "exactly_once is for kafka",
		"{embedded: ./data, url: nats://x}":      "set either embedded",
		"{embedded: ./data, replicas: 3}":        "go with url",
		"{url: 'nats://x', listen: '[::1]:1'}":   "go with embedded",
		"{embedded: ./data, nkey: k}":            "go with url",
		"{url: 'nats://x', nkey: ./none}":        "nkey",
		"{directory: ./data}":                    "directory",
		"{embedded: ./data, max_age: never}":     "never",
	} {
		b, err := embedded.FromSettings(t.Context(), settings(file))
		require.ErrorContains(t, err, remedy)
		require.Nil(t, b)
	}
}

const (
	childDir  = "WAYBILL_EMBEDDED_TEST_DIR"
	childSync = "WAYBILL_EMBEDDED_TEST_SYNC"
)

// child publishes for ever, and prints the id of every message that the broker
// acknowledged. Beside it a group reads, and prints what it acknowledged.
func child(dir string) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	sync, err := time.ParseDuration(os.Getenv(childSync))
	check(err)
	b, err := embedded.Open(ctx, embedded.Config{Dir: dir, SyncInterval: sync})
	check(err)
	check(b.EnsureTopics(ctx, "ordering.order"))
	c, err := b.Consume(ctx, "ordering.order", "group")
	check(err)
	go func() {
		for {
			got, err := c.Receive(ctx, 7)
			check(err)
			check(c.Ack(ctx, got[0])) // The others stay on loan.
			fmt.Println("consumed", got[0].ID)
		}
	}()
	for n := 0; ; n++ {
		var call []broker.Message
		for k := range 10 {
			call = append(call, message(string(rune('a'+k)), n))
		}
		check(b.Publish(ctx, call))
		for _, m := range call {
			fmt.Println("stored", m.ID)
		}
	}
}

// TestKill9LosesNothingAcknowledged kills the process in the middle of its work,
// several times on one directory. What it was told to be stored is there, and
// its group goes on in order of the keys.
func TestKill9LosesNothingAcknowledged(t *testing.T) {
	t.Run("synced always", func(t *testing.T) { testKill9(t, 0) })
	t.Run("synced later", func(t *testing.T) { testKill9(t, time.Hour) })
}

func testKill9(t *testing.T, sync time.Duration) {
	dir := t.TempDir()
	stored, consumed := map[string]bool{}, map[string]bool{}
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir, childSync+"="+sync.String())
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for before := len(stored); lines.Scan(); {
			what, id, _ := strings.Cut(lines.Text(), " ")
			switch what {
			case "stored":
				stored[id] = true
			case "consumed":
				consumed[id] = true
			default:
				require.FailNow(t, lines.Text())
			}
			if len(stored) == before+300 {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		require.Error(t, cmd.Wait(), "it was killed")
	}
	require.NotEmpty(t, consumed)

	b := open(t, embedded.Config{Dir: dir})
	all, left := map[string]bool{}, map[string]bool{}
	read(t, b, "everything", func(d broker.Delivery) { all[d.ID] = true })
	for id := range stored {
		require.True(t, all[id], "%s was acknowledged", id)
	}
	last := map[string]int{}
	read(t, b, "group", func(d broker.Delivery) {
		left[d.ID] = true
		n, err := strconv.Atoi(string(d.Body))
		require.NoError(t, err)
		before, known := last[d.Key]
		require.True(t, !known || before < n, "key %s: %d after %d", d.Key, n, before)
		last[d.Key] = n
	})
	for id := range all {
		require.True(t, left[id] || consumed[id], "%s wasn't acknowledged by the group and doesn't come again", id)
	}
}

// read receives everything up to a message that it publishes itself.
func read(t *testing.T, b broker.Broker, group string, each func(broker.Delivery)) {
	t.Helper()
	end := message("end-"+group, 0)
	require.NoError(t, b.Publish(t.Context(), []broker.Message{end}))
	c, err := b.Consume(t.Context(), "ordering.order", group)
	require.NoError(t, err)
	for {
		got, err := c.Receive(t.Context(), 100)
		require.NoError(t, err)
		require.NoError(t, c.Ack(t.Context(), got...))
		for _, d := range got {
			if d.ID == end.ID {
				require.NoError(t, c.Close(t.Context()))
				return
			}
			each(d)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	e := open(b, embedded.Config{Dir: b.TempDir()})
	require.NoError(b, e.EnsureTopics(b.Context(), "ordering.order"))
	for _, size := range []int{1, 10, 500} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			n := 0
			for b.Loop() {
				call := make([]broker.Message, size)
				for i := range call {
					call[i] = message(fmt.Sprint(size, "-", i), n)
					call[i].Body = make([]byte, 1000)
				}
				n++
				require.NoError(b, e.Publish(b.Context(), call))
			}
			b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
