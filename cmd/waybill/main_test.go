package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/buildinfo"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "waybill")
	if text, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s", text)
		return 1
	}
	return m.Run()
}

type result struct {
	code           int
	stdout, stderr string
}

// waybill runs the built program in a directory of its own.
func waybill(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(t.Context(), binary, args...)
	c.Dir, c.Stdout, c.Stderr = t.TempDir(), &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{c.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

type order struct{ domain.Root }

type placed struct{ Note string }

var ordering = domain.MustNew("ordering", domain.Aggregate[*order]("order", domain.Event[placed](domain.Published())))

// place saves n orders, for the internal broker and one partner.
func place(t *testing.T, p uow.Provider, n int) {
	t.Helper()
	units, err := uow.New(uow.Config{Domain: ordering, Providers: []uow.Provider{p}, External: []outbox.Target{{Broker: "partner"}}})
	require.NoError(t, err)
	for range n {
		require.NoError(t, repository.New[*order](units).Save(t.Context(), newOrder()))
	}
}

func newOrder() *order {
	o := &order{Root: domain.NewRoot()}
	o.Raise(placed{})
	return o
}

// server returns the URL of an empty schema on PostgreSQL.
func server(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, dsn, `run scripts/test, or eval "$(scripts/services up)"`)
	schema := "cmd_" + strings.ToLower(filepath.Base(t.TempDir())) + fmt.Sprint(os.Getpid())
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: dsn, Schema: schema})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
		require.NoError(t, errors.Join(err, p.Close()))
	})
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// features have tables in each database, in the order in which they are made.
const features = "outbox, timers, history, repository, subscription, command, process, projection"

type answer struct {
	Providers map[string]map[string]lane `json:"providers"`
}

// S3-27: the signals of the database, by the command line.
func TestStats_S3_27(t *testing.T) {
	for name, dsn := range map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { return filepath.Join(t.TempDir(), "ordering.db") },
		"postgres": server,
	} {
		t.Run(name, func(t *testing.T) {
			dsn := dsn(t)
			r := waybill(t, "--dsn", dsn, "migrate")
			require.Equal(t, result{0, "Provider default was migrated: 64 partitions.\n  New tables: " + features + ".\n", ""}, r)
			require.Equal(t, result{0, "Provider default is up to date: 64 partitions.\n", ""}, waybill(t, "--dsn", dsn, "migrate"), "safe to repeat")

			r = waybill(t, "--dsn", dsn, "outbox", "stats")
			require.Zero(t, r.code, r.stderr)
			require.Contains(t, r.stdout, "no rows yet")

			p := openFor(t, dsn)
			place(t, p, 3)
			abandon(t, p, "partner", "no \x1b[31mleader")

			r = waybill(t, "--dsn", dsn, "outbox", "stats", "--json")
			require.Zero(t, r.code, r.stderr)
			require.Empty(t, r.stderr)
			var a answer
			require.NoError(t, json.Unmarshal([]byte(r.stdout), &a))
			for _, key := range []string{`"counts"`, `"oldest_pending_seconds"`, `"lease_owners": []`, `"last_error"`, `"abandoned": 0`} {
				require.Contains(t, r.stdout, key)
			}
			main, partner := a.Providers["default"]["default"], a.Providers["default"]["partner"]
			require.Equal(t, map[outbox.Status]int64{"pending": 3, "processing": 0, "published": 0, "failed": 0, "abandoned": 0}, main.Counts)
			require.EqualValues(t, 2, partner.Counts[outbox.Pending])
			require.EqualValues(t, 1, partner.Counts[outbox.Abandoned])
			require.NotNil(t, main.OldestPendingSeconds)
			require.Nil(t, main.LastError)
			require.Contains(t, *partner.LastError, "leader")

			r = waybill(t, "--dsn", dsn, "outbox", "stats")
			require.Zero(t, r.code, r.stderr)
			lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
			require.Len(t, lines, 3)
			require.Regexp(t, `^PROVIDER +BROKER +PENDING +PROCESSING +PUBLISHED +FAILED +ABANDONED +RETRY RATE +OLDEST PENDING +LEASE OWNERS +LAST ERROR$`, lines[0])
			require.Regexp(t, `^default +default +3 +0 +0 +0 +0 +0.0 % +\d+s +- +-$`, lines[1])
			require.Regexp(t, `^default +partner +2 +0 +0 +0 +1 +0.0 % +\d+s +- +no  \[31mleader$`, lines[2], "without the terminal's control characters")
		})
	}
}

// What a process says that doesn't reach the broker is the last error, as its rows wait and none of them has one.
func TestStats_ABrokerThatIsNotReached(t *testing.T) {
	for name, dsn := range map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { return filepath.Join(t.TempDir(), "ordering.db") },
		"postgres": server,
	} {
		t.Run(name, func(t *testing.T) {
			dsn := dsn(t)
			require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
			p := openFor(t, dsn)
			place(t, p, 1)
			_, err := p.DB().ExecContext(t.Context(), "INSERT INTO outbox_members (lane, name, since, until, healthy, trouble)"+
				" SELECT id, 'host.1.a', '2026-01-02T03:04:05.678Z', '9999-12-31T00:00:00.000Z', FALSE, 'connection refused' FROM outbox_lanes WHERE target = 'default'")
			require.NoError(t, err)
			r := waybill(t, "--dsn", dsn, "outbox", "stats")
			require.Zero(t, r.code, r.stderr)
			require.Regexp(t, `(?m)^default +default +1 .* connection refused$`, r.stdout)
			require.Regexp(t, `(?m)^default +partner +1 .* -$`, r.stdout)
		})
	}
}

// abandon gives up the first row of a target.
func abandon(t *testing.T, p uow.Provider, target, why string) {
	t.Helper()
	for _, statement := range []string{
		"INSERT INTO outbox_abandoned (seq, lane, part, key, class, error, attempts, losses, maybe_delivered)" +
			" SELECT q.seq, q.lane, q.part, q.key, 'permanent', ?0, 1, 0, FALSE FROM outbox_queue AS q JOIN outbox_lanes AS l ON l.id = q.lane WHERE l.target = ?1 ORDER BY q.seq LIMIT 1",
		"DELETE FROM outbox_queue WHERE seq IN (SELECT seq FROM outbox_abandoned)",
	} {
		_, err := p.DB().ExecContext(t.Context(), statement, why, target)
		require.NoError(t, err)
	}
}

func openFor(t *testing.T, dsn string) uow.Provider {
	t.Helper()
	var p uow.Provider
	var err error
	if strings.Contains(dsn, "://") {
		p, err = postgres.Open(t.Context(), postgres.Config{DSN: dsn})
	} else {
		p, err = sqlite.Open(t.Context(), sqlite.Config{Path: dsn})
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestConfig_SeveralProviders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	text := fmt.Sprintf(`domain: ordering
providers:
  default: {dialect: sqlite, path: %q}
  archive: {dialect: sqlite, path: %q}
brokers: {default: {kind: kafka, addresses: ["127.0.0.1:1"]}, partner: {kind: kafka, addresses: ["127.0.0.1:1"], topic_prefix: p.}}
outbox: {external_brokers: [partner], partitions: 8}
`, filepath.Join(dir, "a.db"), filepath.Join(dir, "b.db"))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	r := waybill(t, "--config", file, "migrate", "--json")
	require.Zero(t, r.code, r.stderr)
	const migrated = `{"migrations": [], "partitions": 8, "targets": {"ordering": {"broker": "default", "external": ["partner"]}}}`
	var first struct {
		Providers map[string]struct {
			Migrations []migrate.Step `json:"migrations"`
		} `json:"providers"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &first))
	require.Equal(t, "0001_outbox.sql", first.Providers["archive"].Migrations[0].Name)
	r = waybill(t, "--config", file, "migrate", "--json")
	require.JSONEq(t, `{"providers": {"default": `+migrated+`, "archive": `+migrated+`}}`, r.stdout)

	r = waybill(t, "--config", file, "--json", "outbox", "stats")
	require.Zero(t, r.code, r.stderr)
	var a answer
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &a))
	for _, provider := range []string{"default", "archive"} {
		require.Len(t, a.Providers[provider], 2, "the file's brokers, though no row was written yet")
		require.Contains(t, a.Providers[provider]["partner"].Counts, outbox.Published)
	}

	// One that isn't migrated is null, and the other is shown all the same.
	require.NoError(t, os.Remove(filepath.Join(dir, "b.db")))
	r = waybill(t, "--config", file, "--json", "outbox", "stats")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stdout, `"archive": null`)
	require.Contains(t, r.stdout, `"default": {`)
	require.Contains(t, r.stderr, `provider "archive": tables of outbox are missing; run `+"`waybill migrate`")
	require.NotContains(t, r.stderr, `"default"`)
}

func TestMigrate_AnotherPartitionCount(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "waybill.yaml")
	text := fmt.Sprintf("domain: ordering\nproviders: {default: {dialect: sqlite, path: %q}}\noutbox: {partitions: 8}\n", filepath.Join(dir, "a.db"))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	require.Zero(t, waybill(t, "--config", file, "migrate").code)
	t.Setenv("WAYBILL_OUTBOX_PARTITIONS", "16")
	r := waybill(t, "--config", file, "migrate")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "the database has 8 partitions, the configuration says 16")
}

// F-59: nodes that migrate at the same time don't get into each other's way.
func TestMigrate_F_59_NodesRace(t *testing.T) {
	for name, dsn := range map[string]string{"sqlite": filepath.Join(t.TempDir(), "a.db"), "postgres": server(t)} {
		t.Run(name, func(t *testing.T) {
			results := make([]result, 4)
			var all sync.WaitGroup
			for i := range results {
				all.Go(func() { results[i] = waybill(t, "--dsn", dsn, "migrate", "--set-targets", "ordering=default,partner") })
			}
			all.Wait()
			for _, r := range results {
				require.Zero(t, r.code, r.stderr)
				require.Regexp(t, `^Provider default (was migrated|is up to date): 64 partitions\.\n(  New tables: .*\n)?  ordering sends to default,partner\.\n$`, r.stdout)
			}
		})
	}
}

// The targets of a context are changed by an explicit act only, with the file that
// goes with them or without one.
func TestMigrate_AnotherListOfTargets(t *testing.T) {
	dir := t.TempDir()
	file, db := filepath.Join(dir, "waybill.yaml"), filepath.Join(dir, "a.db")
	text := fmt.Sprintf("domain: ordering\nproviders: {default: {dialect: sqlite, path: %q}}\n", db)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	r := waybill(t, "--config", file, "migrate")
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, "Provider default was migrated: 64 partitions.\n  New tables: "+features+".\n  ordering sends to default.\n", r.stdout)

	t.Setenv("WAYBILL_OUTBOX_EXTERNAL_BROKERS", "partner")
	r = waybill(t, "--config", file, "migrate")
	require.Equal(t, exitFailed, r.code)
	const act = "waybill migrate --set-targets ordering=default,partner"
	require.Contains(t, r.stderr, `provider "default": outbox: in the database context ordering sends to default, in the configuration to default,partner`)
	require.Contains(t, r.stderr, "stop all its processes and run `"+act+"`")

	r = waybill(t, append([]string{"--config", file}, strings.Fields(act)[1:]...)...)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "  ordering sends to default,partner.\n")
	require.Zero(t, waybill(t, "--config", file, "migrate").code)

	r = waybill(t, "--config", file, "migrate", "--set-targets", "ordering=default")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.stderr, "--set-targets says that ordering sends to default, and the configuration file says default,partner: make them equal")
	require.Zero(t, waybill(t, "--config", file, "migrate").code, "nothing has changed")

	r = waybill(t, "--dsn", db, "migrate", "--set-targets", "ordering=main,partner", "--set-targets", "shipping=main")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "  ordering sends to main,partner.\n  shipping sends to main.\n")
	r = waybill(t, "--dsn", db, "migrate", "--set-targets", "shipping=other", "--actor", "mia")
	require.Zero(t, r.code, r.stderr)
	r = waybill(t, "--dsn", db, "outbox", "log", "--limit", "1")
	require.Regexp(t, `mia +targets-set +1 +\{"context":"shipping","from":\{"broker":"main","external":\[\]\},"to":\{"broker":"other","external":\[\]\}\}`, r.stdout)
	require.Equal(t, exitUsage, waybill(t, "--dsn", db, "migrate", "--set-targets", "shipping=main", "--actor", "").code)
	r = waybill(t, "--dsn", db, "migrate", "--set-targets", "ordering=")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "name every broker, and none twice")
}

// What people meet first is an error: each says what to do.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	empty := filepath.Join(dir, "empty.db")
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: empty})
	require.NoError(t, err)
	require.NoError(t, p.Close())

	newer := filepath.Join(dir, "newer.db")
	p, err = sqlite.Open(t.Context(), sqlite.Config{Path: newer})
	require.NoError(t, err)
	require.NoError(t, engine.MigrateProvider(t.Context(), p, 0))
	_, err = p.DB().ExecContext(t.Context(), "INSERT INTO waybill_migrations (feature, version, applied_at) VALUES ('outbox', 1000, '2026-01-01')")
	require.NoError(t, err)
	require.NoError(t, p.Close())

	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no command":               {nil, exitUsage, []string{"waybill needs a command: migrate, outbox, ", ", completion\n", "waybill --help"}},
		"half a command":           {[]string{"outbox"}, exitUsage, []string{"waybill outbox needs a command: stats, list, ", ", backfill\n"}},
		"an unknown command":       {[]string{"migrat"}, exitUsage, []string{"migrat", "did you mean"}},
		"an unknown flag":          {[]string{"--dns", "x", "migrate"}, exitUsage, []string{"unknown flag --dns", "did you mean"}},
		"no database":              {[]string{"migrate"}, exitUsage, []string{"which database?", "--config waybill.yaml", "--dsn"}},
		"two databases":            {[]string{"--dsn", "a", "--config", "b", "migrate"}, exitUsage, []string{"give one of them"}},
		"another kind of database": {[]string{"--dsn", "mysql://u:sekret@h/db", "migrate"}, exitUsage, []string{"mysql://", "postgres://"}},
		"key=value pairs":          {[]string{"--dsn", "host=h password=sekret", "migrate"}, exitUsage, []string{"write key=value pairs as postgres://"}},
		"a URL that is none":       {[]string{"--dsn", "postgres://u:sekret@h:port/db", "migrate"}, exitFailed, []string{"can't be understood"}},
		"nobody there":             {[]string{"--dsn", "postgres://u:sekret@127.0.0.1:1/db", "migrate"}, exitFailed, []string{"no PostgreSQL answers at 127.0.0.1:1", "start it"}},
		"no file":                  {[]string{"--dsn", filepath.Join(dir, "none.db"), "outbox", "stats"}, exitFailed, []string{"there is no SQLite file", "migrate"}},
		"no directory":             {[]string{"--dsn", filepath.Join(dir, "none", "a.db"), "migrate"}, exitFailed, []string{"create it"}},
		"no tables":                {[]string{"--dsn", empty, "outbox", "stats"}, exitFailed, []string{"tables of outbox are missing; run `waybill migrate`"}},
		"tables of a newer build":  {[]string{"--dsn", newer, "outbox", "stats"}, exitFailed, []string{"tables of outbox are at version 1000", "deploy a newer build"}},
		"rows of a newer build":    {[]string{"--dsn", newer, "outbox", "list"}, exitFailed, []string{"tables of outbox are at version 1000", "deploy a newer build"}},
		"a change under those":     {[]string{"--dsn", newer, "outbox", "retry", "--held", "--actor", "ada", "--yes"}, exitFailed, []string{"deploy a newer build"}},
		"owners under those":       {[]string{"--dsn", newer, "partitions"}, exitFailed, []string{"deploy a newer build"}},
		"a purge under those":      {[]string{"--dsn", newer, "outbox", "purge", "--actor", "ada", "--yes"}, exitFailed, []string{"deploy a newer build"}},
		"migrate under those":      {[]string{"--dsn", newer, "migrate"}, exitFailed, []string{"deploy a newer build"}},
		"no configuration":         {[]string{"--config", filepath.Join(dir, "none.yaml"), "migrate"}, exitFailed, []string{"none.yaml: no such file"}},
		"a filter without a value": {
			[]string{"--dsn", empty, "dead-letters", "purge", "--status", "parked", "--key", "", "--yes"},
			exitUsage,
			[]string{"--key is empty: give it a value, or leave it out"},
		},
		"a list without a value":      {[]string{"--dsn", empty, "outbox", "skip", "--target", "partner", "--seq", "", "--yes"}, exitUsage, []string{"--seq is empty"}},
		"targets without a value":     {[]string{"--dsn", empty, "migrate", "--set-targets", ""}, exitUsage, []string{"--set-targets is empty"}},
		"times that are exchanged":    {[]string{"--dsn", empty, "outbox", "list", "--from", "2h", "--until", "3h"}, exitUsage, []string{"nothing is at --from 2", "exchange the two"}},
		"letters of no time":          {[]string{"--dsn", empty, "dead-letters", "list", "--from", "2026-01-02T15:04:05Z", "--until", "2026-01-02T15:04:05Z"}, exitUsage, []string{"exchange the two"}},
		"an argument without a value": {[]string{"--dsn", empty, "outbox", "backfill", ""}, exitUsage, []string{"[<broker>] is empty"}},
		"a limit of nothing":          {[]string{"--dsn", empty, "outbox", "abandon", "--target", "partner", "--limit", "0", "--yes"}, exitUsage, []string{"--limit is 0: give it more, or leave it out"}},
		"a replay of nothing":         {[]string{"--dsn", empty, "dead-letters", "replay", "--subscription", "s", "--limit=0", "--yes"}, exitUsage, []string{"--limit is 0"}},
		"a rate of nothing":           {[]string{"--dsn", empty, "outbox", "retry", "--target", "partner", "--rate", "0", "--yes"}, exitUsage, []string{"--rate is 0"}},
		"no build":                    {[]string{"--dsn", empty, "projections", "retire", "board", "--build", "0", "--yes"}, exitUsage, []string{"--build is 0"}},
		"an age of nothing":           {[]string{"--dsn", empty, "outbox", "purge", "--older-than", "0s", "--yes"}, exitUsage, []string{"--older-than is 0"}},
		"a doctor's flag too many":    {[]string{"--dsn", empty, "doctor", "--reads", "ordering::order"}, exitUsage, []string{"--publishes and --reads are about a broker: give --kafka or --nats, too"}},
		"a principal of no Kafka":     {[]string{"--dsn", empty, "doctor", "--nats", "--user", "User:x"}, exitUsage, []string{"--user is about rights in Kafka"}},
		"a role in Kafka":             {[]string{"--dsn", empty, "doctor", "--kafka", "--role", "app=x"}, exitUsage, []string{"--role and --provider are about databases"}},
		"a category that is none":     {[]string{"--dsn", empty, "doctor", "--kafka", "--reads", "ordering:order"}, exitUsage, []string{`"ordering:order" can't be in a topic's name`}},
		"a time before all":           {[]string{"--dsn", empty, "outbox", "list", "--until", "0000-01-01T00:00:00Z"}, exitUsage, []string{"--until: ", "is neither a time as in"}},
		"a database without a value":  {[]string{"--dsn", "", "outbox", "stats"}, exitUsage, []string{"--dsn is empty"}},
		"an unknown key": {
			[]string{"--config", write("typo.yaml", "domain: ordering\nproviders: {default: {dialect: sqlite, path: x}}\noutbox:\n  cals: 3\n"), "migrate"},
			exitFailed,
			[]string{`typo.yaml:4: outbox.cals is not a known key; did you mean "calls"?`},
		},
		"an unknown key of a provider": {
			[]string{"--config", write("pth.yaml", "providers:\n  default: {dialect: sqlite, pth: x}\n"), "migrate"},
			exitFailed,
			[]string{`pth.yaml:2: providers.default.pth is not a known key; did you mean "path"?`},
		},
		"an unknown dialect": {
			[]string{"--config", write("mysql.yaml", "providers: {default: {dialect: mysql}}\n"), "migrate"},
			exitFailed,
			[]string{`providers.default.dialect is "mysql"; known here: postgres, sqlite`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := waybill(t, c.args...)
			require.Equal(t, c.code, r.code, r.stderr)
			require.Empty(t, r.stdout, "an error is not an answer")
			for _, want := range c.want {
				require.Contains(t, r.stderr, want)
			}
			require.True(t, strings.HasPrefix(r.stderr, "waybill: "), r.stderr)
			require.NotContains(t, r.stderr, "sekret")
		})
	}
}

func TestErrors_OfPostgreSQL(t *testing.T) {
	dsn := server(t)
	r := waybill(t, "--dsn", dsn, "outbox", "stats")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, "tables of outbox are missing; run `waybill migrate`")

	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Path = "/nowhere"
	r = waybill(t, "--dsn", u.String(), "migrate")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.stderr, `no database "nowhere": create it`)
}

// A role without rights hears what finds them, and gets no half of an answer.
func TestErrors_OfARoleWithoutRights(t *testing.T) {
	dsn := server(t)
	require.Zero(t, waybill(t, "--dsn", dsn, "migrate").code)
	p, role, ctx := openFor(t, dsn), bun.Ident(fmt.Sprintf("idle_%d", os.Getpid())), context.WithoutCancel(t.Context())
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	_, err = p.DB().ExecContext(ctx, "CREATE ROLE ?0 LOGIN; GRANT USAGE ON SCHEMA ?1 TO ?0", role, bun.Ident(u.Query().Get("search_path")))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := p.DB().ExecContext(ctx, "DROP OWNED BY ?0; DROP ROLE ?0", role)
		require.NoError(t, err)
	})
	u.User = url.User(string(role))
	for _, verb := range []string{"migrate", "outbox stats", "outbox show 1", "history head", "database show", "trace x"} {
		r := waybill(t, append([]string{"--dsn", u.String()}, strings.Fields(verb)...)...)
		require.Equal(t, exitFailed, r.code, verb)
		require.Empty(t, r.stdout, verb)
		require.Contains(t, r.stderr, "permission denied for table waybill_migrations", verb)
		require.Contains(t, r.stderr, "\n`waybill doctor` says which right the role lacks, and the GRANT that helps.\n", verb)
	}
}

// waybill.yaml in the working directory needs no flag.
func TestConfig_OfTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "waybill.yaml"), []byte("providers: {default: {dialect: sqlite, path: ./a.db}}\n"), 0o600))
	c := exec.CommandContext(t.Context(), binary, "migrate")
	c.Dir = dir
	text, err := c.CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.FileExists(t, filepath.Join(dir, "a.db"))
}

func TestHelp(t *testing.T) {
	r := waybill(t, "--help")
	require.Zero(t, r.code)
	require.Contains(t, r.stdout, "outbox stats")
	require.Contains(t, r.stdout, "migrate")
	require.Empty(t, r.stderr)
}

func TestVersion(t *testing.T) {
	r := waybill(t, "--version")
	require.Zero(t, r.code)
	require.Regexp(t, `^waybill \S+ \((commit \S+, )?go1\.\S+\)\n$`, r.stdout)
	require.Empty(t, r.stderr)
	require.Equal(t, "waybill v1.2.3 (go1.26)", version(buildinfo.Info{Version: "v1.2.3", Revision: buildinfo.Unknown, Go: "go1.26"}))
	require.Equal(t, "waybill (devel) (commit abc+dirty, go1.26)", version(buildinfo.Info{Version: "(devel)", Revision: "abc+dirty", Go: "go1.26"}))
}
