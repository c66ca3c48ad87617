// Package secured runs an engine of a configuration file against a real Kafka with TLS,
// logins and rules, and asks for the words that a person sees where one of these is wrong.
package secured

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// scratch is a directory for all tests of this run.
var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "secured")
	if err != nil {
		panic(err)
	}
	scratch = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(scratch)
		os.Exit(code)
	}))
}

const (
	patience = time.Minute
	topic    = "vault.account"
	user     = "User:service"
)

var vault = domain.MustNew("vault", domain.Aggregate[*account]("account", domain.Event[Moved](domain.Published())))

type account struct {
	domain.Root
	Moves int
}

type Moved struct {
	Number int `json:"number"`
}

var kinds = config.Kinds{
	Providers: map[string]config.OpenProvider{"sqlite": sqlite.FromSettings},
	Brokers:   map[string]broker.Opener{"kafka": kafka.FromSettings},
}

// world is a secured Kafka, a configuration file, and what was consumed.
type world struct {
	t       *testing.T
	ca      *kafkatest.Authority
	cluster *kafkatest.Cluster
	dir     string

	engine *engine.Engine
	units  *uow.Manager
	repo   *repository.Repository[*account]
	log    said

	mu       sync.Mutex
	consumed []int
}

// newWorld has a user without any right. Kafka has every connection log in again after
// some seconds.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, ca: kafkatest.NewAuthority(t), dir: t.TempDir()}
	w.cluster = kafkatest.Start(t, kafkatest.Config{Authority: w.ca, Settings: []string{"connections.max.reauth.ms=4000"}})
	w.cluster.User("service", "secret")
	w.ca.Write(t, "password", []byte("secret\n"))
	return w
}

// file is the configuration, with the files of tls and sasl that are named.
func (w *world) file(ca, password string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, "waybill.yaml")
	require.NoError(w.t, os.WriteFile(path, fmt.Appendf(nil, `domain: vault
providers: {default: {dialect: sqlite, path: %q}}
brokers:
  default:
    kind: kafka
    addresses: [%q]
    partitions: 1
    tls: {ca: %q}
    sasl: {mechanism: scram-sha-512, user: service, password_file: %q}
outbox: {poll_interval: 100ms, max_poll_interval: 300ms}
server: {addr: "127.0.0.1:0"}
`, filepath.Join(w.dir, "vault.db"), w.cluster.Secured()[0], ca, password), 0o600))
	return path
}

// right is the configuration as it has to be.
func (w *world) right() string { return w.file(w.ca.File("ca.crt"), w.ca.File("password")) }

// start starts an engine of a file, which ends with the test.
func (w *world) start(file string) {
	w.t.Helper()
	s, err := config.Load(w.t.Context(), file, vault, kinds)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Close(context.Background())) })
	require.NoError(w.t, engine.Migrate(w.t.Context(), s.Units))
	w.units, w.repo = s.Units, repository.New[*account](s.Units)
	s.Engine.Logger = slog.New(slog.NewTextHandler(&w.log, nil))
	s.Engine.Subscriptions = []subscription.Stream{{
		Name: "audit", Category: "vault::account", Units: s.Units, MaxAttempts: 1,
		Handlers: []subscription.Handler{subscription.On(func(_ context.Context, e Moved) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.consumed = append(w.consumed, e.Number)
			return nil
		})},
	}}
	w.engine, err = engine.New(s.Engine)
	require.NoError(w.t, err)
	require.NoError(w.t, w.engine.Start(w.t.Context()))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.engine.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		require.NoError(w.t, <-ended)
	})
}

// move changes the one account that there is.
func (w *world) move() {
	w.t.Helper()
	change := func(a *account) error {
		a.Moves++
		a.Raise(Moved{a.Moves})
		return nil
	}
	if err := w.repo.Update(w.t.Context(), "a", change); err == nil {
		return
	}
	a := &account{Root: domain.RootWithID("a")}
	require.NoError(w.t, change(a))
	require.NoError(w.t, w.repo.Save(w.t.Context(), a))
}

// arrives waits until the numbers 1 to n were consumed, in their order, and nothing is
// left.
func (w *world) arrives(n int) {
	w.t.Helper()
	var want []int
	for i := range n {
		want = append(want, i+1)
	}
	waittest.Until(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.consumed) >= n
	}, "%d messages arrive\n%s", n, &w.log)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Equal(w.t, want, w.consumed, "once and in order")
}

// trouble is what health says is wrong.
type trouble struct {
	Code, State, Broker, Subscription, Text string
}

func (w *world) health() (state string, reasons []trouble) {
	w.t.Helper()
	answer, err := http.Get("http://" + w.engine.Addr() + "/api/health")
	require.NoError(w.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(w.t, err)
	var d struct {
		State   string    `json:"state"`
		Reasons []trouble `json:"reasons"`
	}
	require.NoError(w.t, json.Unmarshal(text, &d), "%s", text)
	return d.State, d.Reasons
}

// says waits until health has a reason with all these words.
func (w *world) says(code string, words ...string) {
	w.t.Helper()
	var last []trouble
	waittest.Until(w.t, func() bool {
		_, last = w.health()
		for _, r := range last {
			if r.Code == code && containsAll(r.Text, words) {
				w.t.Logf("%s: %s", code, r.Text)
				return true
			}
		}
		return false
	}, "%s with %q, and it says %+v\n%s", code, words, &last, &w.log)
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// well waits until nothing is wrong.
func (w *world) well() {
	w.t.Helper()
	var last []trouble
	waittest.Until(w.t, func() bool {
		var state string
		state, last = w.health()
		return state == "healthy"
	}, "it is healthy again, and says %+v", &last)
}

// nobodyPaid requires that some rows wait, and none of them has lost an attempt.
func (w *world) nobodyPaid() {
	w.t.Helper()
	for query, want := range map[string]int{
		"SELECT count(*) FROM outbox_queue WHERE attempts > 0": 0,
		"SELECT count(*) FROM outbox_abandoned":                0,
		"SELECT count(*) > 0 FROM outbox_queue":                1,
	} {
		var n int
		require.NoError(w.t, w.units.Providers()[0].Reader().NewRaw(query).Scan(w.t.Context(), &n))
		require.Equal(w.t, want, n, query)
	}
}

// report is what `waybill doctor --kafka` says as JSON.
type report struct {
	Severity string
	Brokers  map[string]struct {
		Grants   []kafkacheck.Grant
		Findings []finding
	}
}

type finding struct{ Check, Severity, Where, What, Remedy string }

var program = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "waybill")
	out, err := exec.Command("go", "build", "-o", path, "../../cmd/waybill").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, err
})

// waybill runs the tool; it may say with its status that something is critical.
func (w *world) waybill(args ...string) string {
	w.t.Helper()
	path, err := program()
	require.NoError(w.t, err)
	out, err := exec.Command(path, append([]string{"--config", filepath.Join(w.dir, "waybill.yaml")}, args...)...).Output()
	if err != nil {
		var failed *exec.ExitError
		require.ErrorAs(w.t, err, &failed)
		require.Equal(w.t, 1, failed.ExitCode(), "%s%s", out, failed.Stderr)
	}
	return string(out)
}

func (w *world) doctor() (r report) {
	w.t.Helper()
	require.NoError(w.t, json.Unmarshal([]byte(w.waybill("--json", "doctor", "--kafka", "--reads", "vault::account")), &r))
	return r
}

// finds is what doctor finds of a check, so severe.
func (w *world) finds(check, severity string) finding {
	w.t.Helper()
	findings := w.doctor().Brokers["default"].Findings
	for _, f := range findings {
		if f.Check == check && f.Severity == severity {
			return f
		}
	}
	require.Fail(w.t, "doctor finds nothing "+severity+" of "+check, "%+v", findings)
	return finding{}
}

// rule is a right of the service, as the tool says that it needs it.
func rule(g kafkacheck.Grant, only ...kadm.ACLOperation) *kadm.ACLBuilder {
	pattern, operations := kadm.ACLPatternLiteral, only
	if g.Prefixed {
		pattern = kadm.ACLPatternPrefixed
	}
	if len(operations) == 0 {
		for _, name := range g.Operations {
			operations = append(operations, operation(name))
		}
	}
	r := kadm.NewACLs().Allow(user).AllowHosts("*").ResourcePatternType(pattern).Operations(operations...)
	if g.Resource == "group" {
		return r.Groups(g.Name)
	}
	return r.Topics(g.Name)
}

func operation(name string) kadm.ACLOperation {
	o, err := kmsg.ParseACLOperation(name)
	if err != nil {
		panic(err)
	}
	return o
}

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.text.String()
	return all[max(0, len(all)-6000):]
}
