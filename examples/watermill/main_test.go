package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/examples/watermill/internal/servertest"
)

// program is a program, built from the module in directory.
func program(t *testing.T, directory string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", to, ".")
	build.Dir = directory
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	return to
}

// database is a new one.
func database(t *testing.T) (dsn string, db *sql.DB) {
	t.Helper()
	all, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	require.NotEmpty(t, all.Host, `WAYBILL_POSTGRES is not set: run scripts/test --long, or eval "$(scripts/services up)"`)
	server, err := sql.Open("pgx", all.String())
	require.NoError(t, err)
	name := "watermill_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = server.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := server.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		require.NoError(t, err)
		require.NoError(t, server.Close())
	})
	all.Path = name
	db, err = sql.Open("pgx", all.String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return all.String(), db
}

// Two engines on Redis Streams, of which one is killed, and Redis is, while orders are
// placed: the books balance, and the partner's stream has every message (S1-12).
func TestBalance_S1_12(t *testing.T) {
	const early, orders = 400, 450
	server := servertest.Start(t, "redis")
	ordering, serve := program(t, filepath.Join("..", "ordering")), program(t, ".")
	dsn, db := database(t)
	file := filepath.Join(t.TempDir(), "waybill.yaml")
	redis := fmt.Sprintf("kind: watermill, url: %q, max_idle: 5s", server.URL)
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `domain: ordering
providers: {default: {dialect: postgres, dsn: %q}}
brokers:
  default: {%s}
  partner: {%s, topic_prefix: "partner."}
outbox: {external_brokers: [partner], retry: {base_delay: 1s}}
server: {addr: "127.0.0.1:0"}
`, dsn, redis, redis), 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	start := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, append([]string{"--config", file}, args...)...)
		said := &bytes.Buffer{}
		cmd.Stderr = said
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			if cmd.ProcessState == nil {
				require.NoError(t, cmd.Process.Kill())
				_ = cmd.Wait() // it was killed
			}
			if t.Failed() {
				t.Logf("%v:\n%s", cmd.Args, said)
			}
		})
		return cmd
	}
	count := func(query string) (n int) {
		require.NoError(t, db.QueryRow(query).Scan(&n))
		return n
	}
	require.NoError(t, start(ordering, "migrate").Wait())
	first, second := start(serve), start(serve)
	place := start(ordering, "place", "--orders", fmt.Sprint(early), "--cancel-percent", "20", "--rate", "80")

	handled := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return count("SELECT count(*) FROM inbox") >= n }, time.Minute, 10*time.Millisecond)
	}
	handled(orders / 8)
	require.NoError(t, first.Process.Kill())
	_ = first.Wait() // it was killed
	handled(orders / 4)
	again := server.Kill(t)
	require.NoError(t, start(ordering, "place", "--orders", fmt.Sprint(orders-early)).Wait())
	// An outage costs no row an attempt: who publishes says that it doesn't reach the broker.
	require.Eventually(t, func() bool {
		return count("SELECT count(*) FROM outbox_members WHERE NOT healthy AND trouble IS NOT NULL") > 0
	}, time.Minute, 10*time.Millisecond, "the broker is away")
	require.Positive(t, count("SELECT count(*) FROM outbox WHERE status = 'pending'"))
	require.Zero(t, count("SELECT count(*) FROM outbox WHERE status = 'abandoned'"))
	again()
	third := start(serve)
	require.NoError(t, place.Wait())

	verify := exec.CommandContext(ctx, ordering, "--config", file, "verify", "--wait", "120s")
	out, err := verify.Output()
	require.NoError(t, err, string(out))
	var books struct {
		OK                           bool
		Orders, Cancelled, Shipments int
		Inbox                        int
		DeadLetters                  int `json:"dead_letters"`
	}
	require.NoError(t, json.Unmarshal(out, &books))
	require.True(t, books.OK)
	require.Equal(t, orders, books.Orders)
	require.Equal(t, orders, books.Shipments)
	require.Positive(t, books.Cancelled)
	require.Zero(t, books.DeadLetters)

	options, err := goredis.ParseURL(server.URL)
	require.NoError(t, err)
	client := goredis.NewClient(options)
	defer client.Close()
	entries, err := client.XRange(ctx, "partner.ordering.order", "-", "+").Result()
	require.NoError(t, err)
	told := map[any]bool{}
	for _, e := range entries {
		told[e.Values["_watermill_message_uuid"]] = true
	}
	require.Len(t, told, books.Orders+books.Cancelled)

	for _, engine := range []*exec.Cmd{second, third} {
		require.NoError(t, engine.Process.Signal(os.Interrupt))
		require.NoError(t, engine.Wait())
	}
}
