package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/internal/rights/rightstest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// site is a database, topics and a directory with a waybill.yaml of one's own,
// on the real servers.
type site struct {
	t        *testing.T
	dir      string
	database string
	server   *sql.DB // as a superuser, in another database
	db       *sql.DB
	kafka    string
	prefix   string
}

func newSite(t *testing.T) *site {
	t.Helper()
	dsn, kafka := os.Getenv("WAYBILL_POSTGRES"), os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, dsn, `run scripts/test, or eval "$(scripts/services up)"`)
	require.NotEmpty(t, kafka, `run scripts/test, or eval "$(scripts/services up)"`)
	name := "example_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	s := &site{t: t, dir: t.TempDir(), database: name, kafka: kafka, prefix: name + "."}
	s.server = connect(t, dsn)
	s.execute("CREATE DATABASE " + name)
	t.Cleanup(func() { s.execute("DROP DATABASE " + name + " WITH (FORCE)") })
	own, err := url.Parse(dsn)
	require.NoError(t, err)
	own.Path = "/" + name
	s.db = connect(t, own.String())
	configure := func(file, dsn string) {
		write(t, s.dir, file, fmt.Sprintf(`domain: ordering
providers: {default: {dialect: postgres, dsn: %q}}
brokers:
  default: {kind: kafka, addresses: [%q], topic_prefix: %q}
  partner: {kind: kafka, addresses: [%q], topic_prefix: %q}
outbox: {external_brokers: [partner], retry: {base_delay: 1s}}
server: {addr: "127.0.0.1:0"}
`, dsn, kafka, s.prefix, kafka, s.prefix+"partner."))
	}
	configure("waybill.yaml", own.String())
	succeed(t, s.dir, "migrate")
	t.Cleanup(s.deleteTopics)

	owner, err := postgres.Open(t.Context(), postgres.Config{DSN: own.String()})
	require.NoError(t, err)
	defer func() { require.NoError(t, owner.Close()) }()
	for _, role := range migrate.Roles() {
		g := rights.Grantee{Role: role, Name: rightstest.Login(t, owner.DB(), role)}
		require.NoError(t, rights.Give(t.Context(), owner.DB(), []rights.Grantee{g}, rights.Features()))
		configure(string(role)+".yaml", rightstest.DSN(t, own.String(), g.Name))
	}
	return s
}

// S1: nobody but who migrates owns a table: each command has the rights of its role.
var roles = map[string]migrate.Role{"serve": migrate.Engine, "place": migrate.App, "verify": migrate.Read}

// as puts the configuration file of the command's role in front of it.
func as(args []string) []string {
	return append([]string{"--config", string(roles[args[0]]) + ".yaml"}, args...)
}

func connect(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	db.SetMaxIdleConns(0)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func (s *site) execute(query string) {
	s.t.Helper()
	_, err := s.server.Exec(query)
	require.NoError(s.t, err)
}

func (s *site) deleteTopics() {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka))
	require.NoError(s.t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(context.Background())
	require.NoError(s.t, err)
	for _, topic := range topics.Names() {
		if strings.HasPrefix(topic, s.prefix) {
			_, err := admin.DeleteTopic(context.Background(), topic)
			require.NoError(s.t, err)
		}
	}
}

// strings selects one column.
func (s *site) strings(query string) (all []string) {
	s.t.Helper()
	rows, err := s.db.Query(query)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var v string
		require.NoError(s.t, rows.Scan(&v))
		all = append(all, v)
	}
	require.NoError(s.t, rows.Err())
	return all
}

func (s *site) start(args ...string) *process {
	return start(s.t, s.dir, orderingProgram, as(args)...)
}

func (s *site) succeed(args ...string) string {
	s.t.Helper()
	return succeed(s.t, s.dir, as(args)...)
}

var listening = regexp.MustCompile(`HTTP listens on (http://127\.0\.0\.1:\d+)`)

// serve starts an engine and waits until it is ready.
func (s *site) serve(args ...string) *process {
	p := s.start(append([]string{"serve", "--calls", "2"}, args...)...)
	p.eventually(func() bool {
		m := listening.FindStringSubmatch(p.stderr.String())
		if m == nil {
			return false
		}
		answer, err := http.Get(m[1] + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, "is ready")
	return p
}

// file writes n orders of some customers.
func (s *site) file(n, customers int) { s.fileOf(n, customers, "") }

// fileOf is file with customers of some kinds among the others: see billing.Kind.
func (s *site) fileOf(n, customers int, kinds ...string) {
	var b strings.Builder
	fmt.Fprintln(&b, header)
	for i := range n {
		fmt.Fprintf(&b, "%s%05d,%s,%d,%d\n", kinds[i%len(kinds)], (13*i+i/7)%customers, time.Date(1997, 1, 1+i/50, 0, 0, 0, 0, time.UTC).Format(time.DateOnly), 1+i%4, 1177+i)
	}
	write(s.t, s.dir, "orders.csv", b.String())
}

// heard is what a partner has printed: its messages' ids, in the order in which
// each came first, and the ids of each order's messages.
func heard(t *testing.T, lines []string) (ids map[string]bool, byOrder map[string][]string) {
	t.Helper()
	ids, byOrder = map[string]bool{}, map[string][]string{}
	for _, line := range lines {
		var m struct {
			Data struct {
				OrderID string `json:"order_id"`
			} `json:"data"`
			Metadata struct {
				Headers struct {
					ID   string `json:"id"`
					Type string `json:"type"`
				} `json:"headers"`
			} `json:"metadata"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		if h := m.Metadata.Headers; !ids[h.ID] {
			ids[h.ID] = true
			byOrder[m.Data.OrderID] = append(byOrder[m.Data.OrderID], h.Type)
		}
	}
	return ids, byOrder
}

// Two engines and two writers on PostgreSQL and Kafka, one of each killed in the
// middle and started again: every order is placed, and shipped once if it is paid for;
// if it isn't, it is cancelled, and nobody has paid for it; and the partner hears of all
// of it, each order's events in their order.
// Conformance: S1.
func TestServers_BalanceAfterKills(t *testing.T) {
	const orders = 400
	s := newSite(t)
	s.fileOf(orders, 60, "", "", "late-", "", "", "never-", "", "broke-")
	partner := start(t, s.dir, partnerProgram, "--kafka", s.kafka, "--topic", s.prefix+"partner.ordering.order")
	serve := func() *process { return s.serve("--pay-within", "5s") }
	first, second := serve(), serve()

	place := func(part string, more ...string) *process {
		return s.start(append([]string{"place", "--file", "orders.csv", "--part", part, "--cancel-percent", "10"}, more...)...)
	}
	one, two := place("1/2", "--rate", "100", "--writers", "2"), place("2/2", "--rate", "60", "--writers", "8")
	one.eventually(func() bool { return len(one.output()) > 50 }, "places orders")
	one.kill()
	first.kill()
	one, first = place("1/2", "--writers", "2"), serve()
	require.Zero(t, one.wait(), one.stderr)
	require.Zero(t, two.wait(), two.stderr)
	require.Regexp(t, `existing [1-9]`, one.stderr.String(), "what the killed one had placed")

	b := decode[books](t, s.succeed("verify", "--wait", "90s"))
	require.True(t, b.OK)
	require.EqualValues(t, orders, b.Orders)
	require.EqualValues(t, orders, b.Shipments)
	require.Positive(t, b.Cancelled)
	require.Positive(t, b.Released)
	require.Equal(t, b.Orders, b.Released+b.Cancelled)
	require.Equal(t, b.Released, b.Dispatched)
	require.Equal(t, []int64{b.Orders, b.Orders, 0, 0}, []int64{b.Charges, b.Purchases, b.Running, b.Timers})
	require.Equal(t, b.Shipped, b.Paid-b.Refunded)
	require.Equal(t, 2*b.Orders, b.Inbox, "each order is placed, and released or cancelled")
	require.Zero(t, b.DeadLetters)
	require.Equal(t, b.Orders+b.Cancelled, b.Outbox["partner"]["published"])
	events := "SELECT count(*) FROM outbox WHERE target_broker = 'default' AND status = 'published' AND stream_category IN ('ordering::order', 'shipping::shipment')"
	require.Equal(t, []string{fmt.Sprint(4 * b.Orders)}, s.strings(events), "ordering's events and shipping's")
	unpaid := "SELECT count(*) FROM documents WHERE category = 'ordering::order' AND state ->> 'CustomerID' ~ '^(never|broke)-' AND state ->> 'Status' <> 'cancelled'"
	require.Equal(t, []string{"0"}, s.strings(unpaid))

	total := int(b.Orders + b.Cancelled)
	partner.eventually(func() bool {
		ids, _ := heard(t, partner.output())
		return len(ids) == total
	}, "hears of everything")
	ids, byOrder := heard(t, partner.output())
	for _, line := range told(t, append(one.output(), two.output()...)) {
		require.True(t, ids[line.MessageIDs[0]], "what place told, the partner has heard")
	}
	for id, types := range byOrder {
		require.Equal(t, []string{"Ordering.OrderPlaced.v1", "Ordering.OrderCancelled.v2"}[:len(types)], types, id)
	}
	partner.stop()

	counting := start(t, s.dir, partnerProgram, "--kafka", s.kafka, "--topic", s.prefix+"partner.ordering.order", "--count", "25")
	require.Zero(t, counting.wait())
	require.Len(t, counting.output(), 25)

	first.stop()
	second.stop()
}

// One customer's orders are placed in the order given, whatever the number of
// writers; and what a stopped writer has printed is committed, and nothing else.
func TestPlace_KeepsCustomersInOrderAndEndsCleanly(t *testing.T) {
	s := newSite(t)
	s.file(300, 20)
	p := s.start("place", "--file", "orders.csv", "--writers", "8", "--rate", "150")
	p.eventually(func() bool { return len(p.output()) > 60 }, "places orders")
	p.stop()
	before := told(t, p.output())
	require.Less(t, len(before), 300)
	committed := s.strings("SELECT message_id::text FROM outbox WHERE target_broker = 'partner'")
	require.Len(t, committed, len(before))
	for _, line := range before {
		require.Contains(t, committed, line.MessageIDs[0])
	}

	s.succeed("place", "--file", "orders.csv", "--writers", "3")
	require.Len(t, s.strings("SELECT id FROM documents"), 300)
	customers := s.strings("SELECT (state ->> 'CustomerID') FROM outbox JOIN documents ON category = stream_category AND documents.id = aggregate_id WHERE target_broker = 'partner' ORDER BY seq")
	lines := s.strings("SELECT split_part(aggregate_id, '-', 2) FROM outbox WHERE target_broker = 'partner' ORDER BY seq")
	last := map[string]string{}
	for i, customer := range customers {
		line := fmt.Sprintf("%6s", lines[i])
		require.Less(t, last[customer], line, "customer %s", customer)
		last[customer] = line
	}
	require.Len(t, last, 20)
}

// The database goes away with units in progress, and comes back: no order is
// missing and none is there twice.
func TestPlace_OutlivesTheDatabase(t *testing.T) {
	s := newSite(t)
	s.file(240, 40)
	p := s.start("place", "--file", "orders.csv", "--writers", "8", "--rate", "120", "--cancel-percent", "25")
	for outages, lines := range []int{40, 120} {
		p.eventually(func() bool { return len(p.output()) > lines }, "places orders")
		s.execute("ALTER DATABASE " + s.database + " ALLOW_CONNECTIONS false")
		s.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + s.database + "'")
		p.eventually(func() bool { return strings.Count(p.stderr.String(), "the database fails") > outages }, "notices")
		s.execute("ALTER DATABASE " + s.database + " ALLOW_CONNECTIONS true")
	}
	require.Zero(t, p.wait(), p.stderr)
	require.Contains(t, p.stderr.String(), "placed 240, cancelled 60, existing 0, failed 0")
	require.Contains(t, p.stderr.String(), "the database answers again")

	var ids []string
	for _, line := range told(t, p.output()) {
		ids = append(ids, line.MessageIDs...)
	}
	require.ElementsMatch(t, ids, s.strings("SELECT message_id::text FROM outbox WHERE target_broker = 'partner'"))
}
