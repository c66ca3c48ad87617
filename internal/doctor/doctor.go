// Package doctor examines a database: what is wrong with it, where, and what
// helps. It only reads.
package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/uow"
)

// Severity says how bad a finding is.
type Severity string

const (
	// OK: looked at, and nothing is wrong.
	OK Severity = "ok"
	// Warning: it works, and something should be done.
	Warning Severity = "warning"
	// Critical: events are not published, or could be lost, or are about to be.
	Critical Severity = "critical"
)

// Finding is what one check found in one place.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // "table outbox"; "": the whole database
	What     string   `json:"what"`
	Remedy   string   `json:"remedy"` // "" if nothing is wrong
}

// Worst is the severity of the worst of some findings.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		if rank[f.Severity] > rank[worst] {
			worst = f.Severity
		}
	}
	return worst
}

var rank = map[Severity]int{OK: 0, Warning: 1, Critical: 2}

// patience is how long a check may take.
const patience = 10 * time.Second

// limits are where findings begin.
type limits struct {
	clock       time.Duration // between the clocks
	transaction time.Duration // age of a transaction; critical from 12 times as much on
	horizon     int64         // transactions that a standby holds back
	waiting     time.Duration // of a row whose lane, or partition, nobody has: critical
	expired     time.Duration // of a lease with rows in hand
	overdue     time.Duration // of a clean-up
	unseen      time.Duration // of a subscription
	mixed       time.Duration // since an outbox was heard of
	sent        time.Duration // of a timer that isn't handled
	held        time.Duration // of a projection that waits for a transaction
	dead        int64         // rows, if they are more than a fifth of the living
	connections float64       // used; critical from 0.95 on
	checkpoints int64         // that were requested
	version     int           // of PostgreSQL, as its server_version_num
	wal         int64         // bytes of SQLite's log
	room        int64         // bytes left on the disk of SQLite's file; critical below a sixteenth
	statement   time.Duration // until PostgreSQL ends it
	lock        time.Duration // for which another process has SQLite's file locked, or sessions have waited for a table of PostgreSQL
	rows        time.Duration // for which a transaction has been open whose rows sessions wait for
	integrity   time.Duration // until the look at SQLite's file is ended
	now         func() time.Time
}

var usual = limits{
	clock: time.Second, transaction: 5 * time.Minute, horizon: 1_000_000, waiting: 2 * time.Minute, expired: 30 * time.Second,
	overdue: 24 * time.Hour, unseen: 30 * 24 * time.Hour, mixed: time.Hour, sent: time.Hour, held: time.Minute, dead: 10_000, connections: 0.8, checkpoints: 10, version: 13_00_00, wal: 64 << 20, room: 256 << 20, statement: 5 * time.Second, lock: 3 * time.Second, rows: 30 * time.Second, integrity: 8 * time.Second, now: time.Now,
}

// Examine runs all checks on a database, one after the other, each within seconds.
// One that fails is a warning, and the others run all the same. Findings of each
// check are together; a check that found nothing has one that is OK.
//
// On PostgreSQL the rights of roles are looked at, too, or of the role that the
// database was opened as if none is named. outboxes are the names of those of all databases of
// the configuration; none: what comes from others is not looked at.
func Examine(ctx context.Context, p uow.Provider, outboxes []string, roles ...rights.Grantee) []Finding {
	return examine(ctx, p, usual, outboxes, roles...)
}

func examine(ctx context.Context, p uow.Provider, l limits, outboxes []string, roles ...rights.Grantee) []Finding {
	e := &exam{provider: p, limits: l, outboxes: outboxes, roles: roles, current: map[string]bool{}}
	for _, c := range e.checks() {
		if c.needs != "" && !e.current[c.needs] {
			continue // what is wrong with the tables is said already
		}
		if !e.run(ctx, c) || ctx.Err() != nil {
			break
		}
	}
	return e.findings
}

// check looks at one thing. What it returns is said if it found nothing.
type check struct {
	name  string
	needs string // feature whose tables it reads
	look  func(e *exam, ctx context.Context, db bun.IDB) (fine string, err error)
}

// exam is one examination.
type exam struct {
	provider uow.Provider
	limits   limits
	outboxes []string
	roles    []rights.Grantee
	findings []Finding
	current  map[string]bool // features whose tables are those of this build
	moved    bool            // since its outbox was written, and nobody has accepted it: see identity

	check string // under way
}

func (e *exam) checks() []check {
	outbox := []check{
		{"identity", "outbox", (*exam).identity},
		{"lanes", "outbox", (*exam).lanes},
		{"targets", "outbox", (*exam).targets},
		{"leases", "outbox", (*exam).leases},
		{"held", "outbox", (*exam).held},
		{"quarantine", "outbox", (*exam).quarantine},
		{"retention", "outbox", (*exam).retention},
		{"accounts", "outbox", (*exam).accounts},
		{"timers", "timers", (*exam).timers},
		{"processes", "process", (*exam).processes},
		{"projections", "projection", (*exam).projections},
	}
	subscriptions := []check{
		{"subscriptions", "subscription", (*exam).subscriptions},
		{"sources", "subscription", (*exam).sources},
	}
	if e.postgres() {
		return slices.Concat([]check{
			{"connection", "", (*exam).server},
			{"schema", "", (*exam).schema},
			{"objects", "", (*exam).objects},
			{"sequences", "", (*exam).sequences},
			{"rights", "", (*exam).rights},
			{"clock", "", (*exam).clock},
			{"settings", "", (*exam).settings},
			{"checkpoints", "", (*exam).checkpoints},
			{"vacuum", "", (*exam).vacuum},
			{"transactions", "", (*exam).transactions},
			{"locks", "outbox", (*exam).locks},
			{"connections", "", (*exam).connections},
			{"pooler", "outbox", (*exam).pooler},
		}, outbox, subscriptions)
	}
	return slices.Concat([]check{
		{"connection", "", (*exam).file},
		{"schema", "", (*exam).schema},
		{"objects", "", (*exam).objects},
		{"settings", "", (*exam).pragmas},
		{"files", "", (*exam).modes},
		{"wal", "", (*exam).wal},
		{"disk", "", (*exam).disk},
		{"lock", "", (*exam).lock},
		{"integrity", "", (*exam).integrity},
	}, outbox, subscriptions)
}

func (e *exam) postgres() bool { return e.provider.DB().Dialect().Name() == dialect.PG }

func (e *exam) now() string { return dbtime.Now(e.provider.DB().Dialect()) }

// ago is an expression for a time before the present.
func (e *exam) ago(d time.Duration) string { return dbtime.In(e.provider.DB().Dialect(), -d) }

func (e *exam) add(s Severity, where, what, remedy string) {
	e.findings = append(e.findings, Finding{Check: e.check, Severity: s, Where: where, What: what, Remedy: remedy})
}

// run says whether it makes sense to go on.
func (e *exam) run(ctx context.Context, c check) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e.check = c.name
	before := len(e.findings)
	fine, err := e.reading(ctx, c)
	switch {
	case err != nil && c.name == "connection":
		e.add(Critical, "", "the database can't be read: "+err.Error(), "start it, or correct its settings in the configuration")
		return false
	case dberr.CodeOf(err) == dberr.Denied:
		e.add(Warning, "", "this could not be checked: "+err.Error(), "see the check rights; for statistics, GRANT pg_monitor")
	case dberr.CodeOf(err) == dberr.Limited:
		e.add(Warning, "", "this could not be checked: "+err.Error(), dberr.Remedy(dberr.Limited))
	case err != nil:
		e.add(Warning, "", "this could not be checked: "+err.Error(), "run it again; if it needs rights, give them to the role (GRANT pg_monitor); if it needs time, when the database is less busy")
	case len(e.findings) == before:
		e.add(OK, "", fine, "")
	}
	return true
}

// reading runs a check in a transaction that can only read, and whose statements
// PostgreSQL ends itself.
func (e *exam) reading(ctx context.Context, c check) (fine string, err error) {
	if !e.postgres() {
		return c.look(e, ctx, e.provider.Reader())
	}
	tx, err := e.provider.Reader().BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelReadCommitted})
	if err != nil {
		return "", err
	}
	defer func() {
		if end := tx.Rollback(); !errors.Is(end, sql.ErrTxDone) {
			err = cmp.Or(err, end)
		}
	}()
	// Without enable_seqscan a server that has not counted for long reads by index. Then
	// plans seem to cost much, and to compile them would take longer than to run them.
	_, err = tx.ExecContext(ctx, "SELECT set_config('statement_timeout', ?0, true), set_config('lock_timeout', ?0, true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)", strconv.FormatInt(e.limits.statement.Milliseconds(), 10))
	if err != nil {
		return "", err
	}
	return c.look(e, ctx, tx)
}

// count is "1 row" or "7 rows".
func count(n int64, of string) string {
	if n != 1 {
		of += "s"
	}
	return strconv.FormatInt(n, 10) + " " + of
}
