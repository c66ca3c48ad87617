package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/examples/shop/ordering"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/logtest"
	"github.com/waybill-go/waybill/internal/porttest"
	"github.com/waybill-go/waybill/internal/waittest"
)

// process is a program that runs; it is killed at the end of the test.
type process struct {
	*exec.Cmd
	out, err logtest.Log
	ended    chan struct{}
}

func start(t *testing.T, dir string, command ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	p.Dir, p.Stdout, p.Stderr = dir, &p.out, &p.err
	require.NoError(t, p.Start())
	go func() {
		defer close(p.ended)
		_ = p.Wait() // killed
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%v: %s", command, &p.err)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.Process.Kill() // it may have ended
	<-p.ended
}

// till is the first match of an expression in what the process says.
func (p *process) till(t *testing.T, expression string) (found string) {
	t.Helper()
	say := regexp.MustCompile(expression)
	waittest.Until(t, func() bool { found = say.FindString(p.err.String()); return found != "" }, "it says %s: %v", expression, &p.err)
	return found
}

// served is a shop whose process is killed and started again.
type served struct {
	t    *testing.T
	run  func() *process
	proc *process
	at   string
}

func (s *served) start() {
	s.t.Helper()
	s.proc = s.run()
	s.at = s.proc.till(s.t, `http://[\d.:]+`)
}

func (s *served) restart() {
	s.t.Helper()
	s.proc.kill()
	s.start()
}

// ask is a request, made again until the shop has answered.
func (s *served) ask(method, path, body, key string) (status int, answer []byte) {
	s.t.Helper()
	waittest.Until(s.t, func() bool {
		r, err := http.NewRequestWithContext(s.t.Context(), method, s.at+path, strings.NewReader(body))
		require.NoError(s.t, err)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		answer, err = io.ReadAll(response.Body)
		status = response.StatusCode
		return err == nil && status < http.StatusInternalServerError
	}, "%s %s is answered", method, path)
	return status, answer
}

func (s *served) books() (b ordering.Books) {
	s.t.Helper()
	status, answer := s.ask("GET", "/books", "", "")
	require.Equal(s.t, http.StatusOK, status, "%s", answer)
	require.NoError(s.t, json.Unmarshal(answer, &b))
	return b
}

// purchase places orders and pays for three of four, and kills the shop twice in between. There
// are fewer articles than are paid for.
func (s *served) purchase(orders int) {
	s.t.Helper()
	status, answer := s.ask("POST", "/stock/tea", fmt.Sprintf(`{"quantity": %d}`, orders/2), "stock")
	require.Equal(s.t, http.StatusNoContent, status, "%s", answer)
	for i := range orders {
		id := fmt.Sprint("o-", i)
		status, answer := s.ask("PUT", "/orders/"+id, `{"customer_id": "ann", "article": "tea", "quantity": 1}`, id)
		require.Equal(s.t, http.StatusNoContent, status, "%s", answer)
		if i == orders/3 || i == 2*orders/3 {
			s.restart()
		}
		if i%4 == 3 {
			continue
		}
		waittest.Until(s.t, func() bool { // Billing may not have heard of the order yet.
			status, answer = s.ask("POST", "/orders/"+id+"/payment", "", "pay-"+id)
			return status != http.StatusNotFound
		})
		if status != http.StatusNoContent {
			require.Contains(s.t, string(answer), "nothing to pay", "it took until after the time")
		}
	}
}

// closed waits until nothing is open, and closes the books.
func (s *served) closed(orders int) {
	s.t.Helper()
	var b ordering.Books
	waittest.Until(s.t, func() bool { b = s.books(); return b.Open == 0 && b.Balanced }, "the books balance: %v", says(func() string { return fmt.Sprintf("%+v", b) }))
	require.EqualValues(s.t, orders, b.Orders)
	require.Equal(s.t, b.Paid, b.Sold+b.Returned)
	require.Positive(s.t, b.Completed)
	s.t.Logf("%+v", b)
}

var curl = regexp.MustCompile(`(?m)^curl (-f --retry 5 --retry-all-errors )?(?:-X (\w+) )?http://127\.0\.0\.1:8080(\S+)(?: -H 'Idempotency-Key: (\S+)')?(?: -d '(.+)')?(?:  #.*)?$`)

// readme does what the README does by hand.
func (s *served) readme() {
	s.t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(s.t, err)
	lines := curl.FindAllStringSubmatch(string(text), -1)
	require.Len(s.t, lines, strings.Count(string(text), "\ncurl "), "they have the form that is expected")
	require.NotEmpty(s.t, lines)
	for _, l := range lines {
		var status int
		var answer []byte
		waittest.Until(s.t, func() bool {
			status, answer = s.ask(cmp.Or(l[2], "GET"), l[3], l[5], l[4])
			return status < 300 || l[1] == ""
		})
		require.Less(s.t, status, 300, "%s: %s", l[0], answer)
	}
}

// says is a text that is made when it is needed.
type says func() string

func (s says) String() string { return s() }

// told is what the partner in Python has heard once it has heard of every order twice: that it was
// placed, and how it ended.
func told(t *testing.T, orders int, options ...string) {
	t.Helper()
	python, err := exec.Command("../../scripts/python").Output()
	require.NoError(t, err)
	source, err := filepath.Abs("../partner/python/partner.py")
	require.NoError(t, err)
	p := start(t, t.TempDir(), slices.Concat([]string{strings.TrimSpace(string(python)), source}, options)...)
	ends := map[string][]string{}
	waittest.Until(t, func() bool {
		clear(ends)
		seen := map[string]bool{}
		for line := range strings.Lines(p.out.String()) {
			var e struct {
				Attributes struct{ ID, Type, Subject string }
			}
			if a := &e.Attributes; json.Unmarshal([]byte(line), &e) == nil && !seen[a.ID] {
				seen[a.ID] = true
				ends[a.Subject] = append(ends[a.Subject], a.Type)
			}
		}
		return len(seen) == 2*orders
	}, "the partner hears of everything: %v", &p.err)
	require.Len(t, ends, orders)
	for id, types := range ends {
		require.Equal(t, "Ordering.OrderPlaced.v1", types[0], id)
		require.Contains(t, []string{"Ordering.OrderCompleted.v1", "Ordering.OrderCancelled.v1"}, types[1], id)
	}
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	<-p.ended
	require.Zero(t, p.ProcessState.ExitCode(), "%s", &p.err)
}

// program is the shop, as a user would have it.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "shop")
	if text, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s", text)
		return 1
	}
	return m.Run()
}

const limit = 8 * time.Second // to pay

func TestShop_KilledWithNothingInstalled(t *testing.T) {
	nats := porttest.Address()
	t.Setenv("WAYBILL_BROKERS_DEFAULT_LISTEN", nats)
	t.Setenv("WAYBILL_BROKERS_PARTNER_LISTEN", nats)
	t.Setenv("WAYBILL_SERVER_ADDR", "127.0.0.1:0")
	dir := t.TempDir()
	s := &served{t: t, run: func() *process {
		return start(t, dir, program, "--addr", "127.0.0.1:0", "--pay-within", limit.String())
	}}
	s.start()
	s.purchase(40)
	s.closed(40)
	s.readme()
	s.closed(43)
	told(t, 43, "--nats", "nats://"+nats, "--nkey", filepath.Join(dir, "shop-data/nats/client.nk"), "--topic", "partner.ordering.order")
	s.ends()
}

func TestShop_KilledOnPostgreSQLAndKafka(t *testing.T) {
	dsn, kafka := os.Getenv("WAYBILL_POSTGRES"), os.Getenv("WAYBILL_KAFKA")
	require.NotEmpty(t, dsn, `run scripts/test, or eval "$(scripts/services up)"`)
	require.NotEmpty(t, kafka, `run scripts/test, or eval "$(scripts/services up)"`)
	name := "shop_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	db, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+name+" CASCADE")
		require.NoError(t, errors.Join(err, db.Close(context.Background())))
		kafkatest.DeleteTopics(t, client, name)
	})
	for key, value := range map[string]string{
		"PROVIDERS_DEFAULT_DSN": dsn, "PROVIDERS_DEFAULT_SCHEMA": name, "SERVER_ADDR": "127.0.0.1:0",
		"BROKERS_DEFAULT_ADDRESSES": "[" + kafka + "]", "BROKERS_DEFAULT_TOPIC_PREFIX": name + ".",
		"BROKERS_PARTNER_ADDRESSES": "[" + kafka + "]", "BROKERS_PARTNER_TOPIC_PREFIX": name + ".partner.",
		"BROKERS_DEFAULT_SESSION_TIMEOUT": "6s", "BROKERS_PARTNER_SESSION_TIMEOUT": "6s",
	} {
		t.Setenv("WAYBILL_"+key, value)
	}
	file, err := filepath.Abs("servers.yaml")
	require.NoError(t, err)
	s := &served{t: t, run: func() *process {
		return start(t, t.TempDir(), program, "--config", file, "--addr", "127.0.0.1:0", "--pay-within", limit.String())
	}}
	s.start()
	s.purchase(24)
	s.closed(24)
	told(t, 24, "--kafka", kafka, "--topic", name+".partner.ordering.order")
	s.ends()
}

// ends stops the shop as a supervisor does.
func (s *served) ends() {
	s.t.Helper()
	require.NoError(s.t, s.proc.Process.Signal(syscall.SIGTERM))
	<-s.proc.ended
	require.Zero(s.t, s.proc.ProcessState.ExitCode(), "%s", &s.proc.err)
}
