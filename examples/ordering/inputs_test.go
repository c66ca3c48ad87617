package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/outbox"
)

func TestUsage_IsShownAndWrongOnesEndWith2(t *testing.T) {
	require.Contains(t, succeed(t, t.TempDir(), "--help"), "place --file ORDERS.csv")
	require.Contains(t, succeed(t, t.TempDir(), "verify", "--help"), "--wait")
	for args, want := range map[string]string{
		"--order 5":                     "-order",
		"--orders many":                 `"many"`,
		"--orders -1":                   "--orders is -1",
		"--config waybill.yaml":         "migrate, serve, place and verify",
		"--json verify":                 "--json before a command",
		"serv":                          `no command "serv"`,
		"serve --calls -1":              "--calls is -1",
		"serve --pay-within -1s":        "--pay-within is -1s",
		"serve 4":                       `"4" is not a flag`,
		"migrate now":                   `"now" is not a flag`,
		"verify --wait 90":              "-wait",
		"verify --wait -1s":             "--wait is -1s",
		"place --file f --orders 3":     "--orders and --customers",
		"place --file=":                 "--file is empty",
		"place --part 1/2":              "--part goes with --file",
		"place --file f --part 3/2":     `--part is "3/2"`,
		"place --orders -2 --writers 0": "--writers is 0", // and the other one
		"place --cancel-percent 101":    "--cancel-percent is 101",
		"place --rate -1":               "--rate is -1",
		"place --customers 0":           "--customers is 0",
		"place --config waybill.yaml":   "-config",
	} {
		f := runIn(t, t.TempDir(), strings.Fields(args)...)
		require.Equal(t, exitUsage, f.code, args)
		require.Contains(t, f.stderr, want, args)
		require.Contains(t, f.stderr, "--help")
		require.Empty(t, f.stdout, args)
	}
}

const sqliteAndNATS = `domain: ordering
providers: {default: {dialect: sqlite, path: ./ordering.db}}
brokers:
  default: {kind: nats, embedded: ./nats}
  partner: {kind: nats, embedded: ./nats, topic_prefix: partner.}
outbox: {external_brokers: [partner]}
server: {addr: "127.0.0.1:0"}
`

func TestInputs_WrongOnesAreExplained(t *testing.T) {
	t.Parallel() // a wait for a Kafka that isn't there
	server, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	require.NotEmpty(t, server.Host, `run scripts/test, or eval "$(scripts/services up)"`)
	server.Path = "/no_such_database"
	replaced := func(old, by string) string {
		require.Contains(t, sqliteAndNATS, old)
		return strings.Replace(sqliteAndNATS, old, by, 1)
	}
	sqlite := "{dialect: sqlite, path: ./ordering.db}"
	postgres := func(dsn string) string {
		return replaced(sqlite, fmt.Sprintf("{dialect: postgres, dsn: %q}", dsn))
	}
	for name, c := range map[string]struct {
		file string
		args string
		want []string
	}{
		"no file":            {"", "--config elsewhere.yaml migrate", []string{"elsewhere.yaml", "give --config FILE before the command"}},
		"unknown key":        {replaced("outbox:", "outbocks:"), "serve", []string{"waybill.yaml:", "outbocks", `did you mean "outbox"?`}},
		"unknown broker":     {replaced("[partner]", "[parner]"), "place", []string{`"parner"`, `did you mean "partner"?`}},
		"unknown kind":       {replaced("kind: nats", "kind: rabbit"), "serve", []string{`"rabbit"`}},
		"another context":    {replaced("domain: ordering", "domain: shipping"), "serve", []string{`"shipping"`, `"ordering"`}},
		"wrong DSN":          {postgres("postgres://waybill@127.0.0.1:port/ordering"), "migrate", []string{"DSN"}},
		"no such database":   {postgres(server.String()), "migrate", []string{"no_such_database", "CREATE DATABASE"}},
		"unreachable server": {postgres("postgres://waybill@127.0.0.1:1/ordering"), "serve", []string{"no PostgreSQL answers at 127.0.0.1:1"}},
		"unreachable Kafka":  {replaced("kind: nats, embedded: ./nats}", `kind: kafka, addresses: ["127.0.0.1:1"]}`), "serve", []string{"the broker doesn't answer", "broker=default", "127.0.0.1:1"}},
		"missing tables":     {sqliteAndNATS, "place", []string{"tables of outbox are missing", "migrate"}},
		"missing tables too": {sqliteAndNATS, "verify", []string{"tables of outbox are missing", "migrate"}},
		"missing tables yet": {sqliteAndNATS, "serve", []string{"tables of outbox are missing", "migrate"}},
		"missing orders":     {sqliteAndNATS, "place --file orders.csv", []string{"orders.csv", "no such file"}},
		"empty orders":       {sqliteAndNATS, "place --file empty.csv", []string{"empty.csv is empty", header}},
		"no header":          {sqliteAndNATS, "place --file headless.csv", []string{"headless.csv begins with", header}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if c.file != "" {
				write(t, dir, "waybill.yaml", c.file)
			}
			write(t, dir, "empty.csv", "")
			write(t, dir, "headless.csv", "00001,1997-01-01,1,1177\n")
			f := runIn(t, dir, strings.Fields(c.args)...)
			require.NotZero(t, f.code)
			for _, want := range c.want {
				require.Contains(t, f.stderr, want)
			}
			require.Empty(t, f.stdout)
		})
	}
}

// The others go on, and the exit status remembers.
func TestPlace_ReportsMalformedLines(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "waybill.yaml", sqliteAndNATS)
	succeed(t, dir, "migrate")
	write(t, dir, "orders.csv", header+"\nc,1997-01-01,1,100\nc,1997-01-01,one,100\nc,1997-01-01,3,100\n")

	f := runIn(t, dir, "place", "--file", "orders.csv")
	require.Equal(t, exitFailed, f.code)
	require.Contains(t, f.stderr, `orders.csv, line 3: quantity is "one"`)
	require.Contains(t, f.stderr, "lines that are no orders: 1")
	lines := told(t, strings.Split(strings.TrimSpace(f.stdout), "\n"))
	require.Len(t, lines, 2)
	require.Equal(t, []string{"orders.csv-2", "orders.csv-4"}, []string{lines[0].OrderID, lines[1].OrderID})
	require.EqualValues(t, 1, lines[0].Version)
	require.Len(t, lines[0].MessageIDs, 1)

	write(t, dir, "orders.csv", header+"\nc,1997-01-01,1,100\nc,1997-01-01,1,100\nc,1997-01-01,3,100\n")
	f = runIn(t, dir, "place", "--file", "orders.csv", "--cancel-percent", "100")
	require.Zero(t, f.code, f.stderr)
	require.Contains(t, f.stderr, "placed 1, cancelled 1, existing 2, failed 0")
	lines = told(t, strings.Split(strings.TrimSpace(f.stdout), "\n"))
	require.Len(t, lines, 2)
	require.Equal(t, committed{"orders.csv-3", 2, lines[1].MessageIDs}, lines[1], "the cancellation is a unit of its own")
	require.NotEqual(t, lines[0].MessageIDs, lines[1].MessageIDs)

	f = runIn(t, dir, "verify")
	require.Equal(t, exitFailed, f.code, "nobody has published anything")
	b := decode[books](t, f.stdout)
	require.False(t, b.OK)
	require.Equal(t, []int64{3, 1, 0, 0}, []int64{b.Orders, b.Cancelled, b.Shipments, b.Inbox})
	require.EqualValues(t, 4, b.Outbox["partner"]["pending"])
	require.Contains(t, strings.Join(b.Differences, "\n"), "3 orders have no shipment, such as orders.csv-2")
	require.Contains(t, f.stderr, "the books don't balance")
}

// T11: with the files that the example brings along, and nothing installed, orders from
// a file are placed, published and shipped.
func TestLocal_T11_NothingInstalled(t *testing.T) {
	t.Setenv("WAYBILL_SERVER_ADDR", "127.0.0.1:0")
	dir := t.TempDir()
	for _, name := range []string{"local.yaml", "orders.csv"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		write(t, dir, name, string(text))
	}
	succeed(t, dir, "--config", "local.yaml", "migrate")
	p := start(t, dir, orderingProgram, "--config", "local.yaml", "serve")
	p.eventually(func() bool { return listening.MatchString(p.stderr.String()) }, "listens")
	for _, part := range []string{"1/2", "2/2"} {
		succeed(t, dir, "--config", "local.yaml", "place", "--file", "orders.csv", "--part", part)
	}
	b := decode[books](t, succeed(t, dir, "--config", "local.yaml", "verify", "--wait", "90s"))
	require.True(t, b.OK)
	require.EqualValues(t, 40, b.Orders)
	p.stop()
}

// What the example's own file says is understood.
func TestSample_IsValid(t *testing.T) {
	f, err := config.Parse("waybill.yaml")
	require.NoError(t, err)
	require.Equal(t, "ordering", f.Domain)
	require.Equal(t, []outbox.Target{{Broker: "partner"}}, f.External)
	require.Equal(t, outbox.DefaultLease, f.Outbox.Lease)
}
