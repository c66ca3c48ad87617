// Package processdb is the processes of one database as operators see them, whichever
// program runs them.
package processdb

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

const (
	// Running is the status of a process that has begun.
	Running = "running"
	// Awaited is that of one for which messages came before what begins it.
	Awaited = "awaited"
	// Ended is that of one for which messages are ignored.
	Ended = "ended"

	// IdleAfter is how long a running process may hear nothing without a timer before it
	// is idle: nothing that it has set will end it.
	IdleAfter = 30 * 24 * time.Hour

	page   = 100              // found at a time, if nothing else is said
	people = 30 * time.Second // how long somebody waits for an answer
	// oldest is how many of a process's oldest running ones are looked at for idle ones.
	oldest = 10_000
	// most is how many timers and dead letters of a process are shown.
	most = 100
)

// ErrNone is that there is no process of an id.
var ErrNone = errors.New("there is no such process")

// Statuses are all of them.
func Statuses() []string { return []string{Running, Awaited, Ended} }

// Store is the processes of one database. It is safe for concurrent use.
type Store struct {
	provider uow.Provider
	db       *bun.DB // to read

	counting sync.Mutex
	counts   map[string]Stats
	counted  time.Time // until when these are good
}

// New returns the processes of a provider's database.
func New(p uow.Provider) *Store { return &Store{provider: p, db: p.Reader()} }

// Check returns an error that names the remedy unless the tables are this build's.
func (s *Store) Check(ctx context.Context) error {
	for _, set := range []interface {
		Check(ctx context.Context, db bun.IDB) error
	}{process.Migrations(), timerdb.Migrations(), subscription.Migrations()} {
		if err := set.Check(ctx, s.db); err != nil {
			return err
		}
	}
	return nil
}

// Time is the database's.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	return dbtime.Ask(ctx, s.db)
}

// Filter chooses processes. An empty field does not restrict.
type Filter struct {
	Process string    `json:"process,omitempty"` // "library.lending"
	IDs     []string  `json:"ids,omitempty"`
	Status  string    `json:"status,omitempty"`
	From    time.Time `json:"from,omitzero"`  // of BeganAt
	Until   time.Time `json:"until,omitzero"` // not included
	// Idle ones run, have heard nothing for [IdleAfter], and have no timer.
	Idle  bool   `json:"idle,omitempty"`
	After string `json:"-"` // The page before says it.
	Limit int    `json:"-"` // Defaults to 100.
}

// Empty says whether f chooses every process.
func (f Filter) Empty() bool {
	return len(f.IDs) == 0 && f.Process+f.Status == "" && f.From.IsZero() && f.Until.IsZero() && !f.Idle
}

// Process is one as a list has it.
type Process struct {
	Process string     `json:"process"` // "library.lending"
	ID      string     `json:"id"`
	Status  string     `json:"status"`
	Version int64      `json:"version"`
	BeganAt time.Time  `json:"began_at"` // awaited: when its first message came
	LastAt  time.Time  `json:"last_at"`
	EndedAt *time.Time `json:"ended_at"`
}

// Page is a page of processes, the oldest first.
type Page struct {
	Processes []Process `json:"processes"`
	Next      string    `json:"next"` // the After of the next page; "": there is none
}

// Details is all of a process.
type Details struct {
	Process

	StateVersion int             `json:"state_version"`
	State        json.RawMessage `json:"state"` // null: it is awaited
	Heard        []process.Heard `json:"heard"` // the last 20, the first one first
	Timers       []outbox.Timer  `json:"timers"`
	// Letters are its open dead letters, in the order of parking: at most 100, of
	// LettersTotal.
	Letters      []subscription.DeadLetter `json:"dead_letters"`
	LettersTotal int64                     `json:"dead_letters_total"`
}

// idle is the condition of one that hears nothing and has no timer. Its owner in the
// table of timers is made as [process.Owner] makes it.
func (s *Store) idle() string {
	d := s.db.Dialect()
	before := "(SELECT " + dbtime.In(d, -IdleAfter) + ")"
	dot := "strpos(p.process, '.')"
	if d.Name() == dialect.SQLite {
		dot = "instr(p.process, '.')"
	}
	return "p.status = 'running' AND p.began_at < " + before + " AND p.last_at < " + before + " AND NOT EXISTS (SELECT 1 FROM timers AS t WHERE t.owner =" +
		" substr(p.process, 1, " + dot + " - 1) || '::" + processmsg.Stream + "-' || substr(p.process, " + dot + " + 1) || '-' || p.id)"
}

// match is a condition for the processes that f chooses, on processes AS p.
func (s *Store) match(f Filter) (schema.QueryWithArgs, error) {
	where, args := []string{"TRUE"}, []any(nil)
	add := func(condition string, arg ...any) { where, args = append(where, condition), append(args, arg...) }
	for _, text := range append([]string{f.Process}, f.IDs...) {
		if !outbox.Storable(text) {
			return schema.QueryWithArgs{}, fmt.Errorf("processes: %q is no text that a process can have: it must be UTF-8 without a zero byte", text)
		}
	}
	if f.Status != "" && !slices.Contains(Statuses(), f.Status) {
		return schema.QueryWithArgs{}, fmt.Errorf("processes: %q is not a status; there are %s", f.Status, strings.Join(Statuses(), ", "))
	}
	d := s.db.Dialect()
	if f.Process != "" {
		add("p.process = ?", f.Process)
	}
	if len(f.IDs) > 0 {
		add("p.id IN (?)", bun.List(f.IDs))
	}
	if f.Status != "" {
		add("p.status = ?", bun.Safe("'"+f.Status+"'")) // which the plan is to know, for its index
	}
	if !f.From.IsZero() {
		add("p.began_at >= ?", dbtime.Value(d, f.From))
	}
	if !f.Until.IsZero() {
		add("p.began_at < ?", dbtime.Value(d, f.Until))
	}
	if f.Idle {
		add(s.idle())
	}
	return bun.SafeQuery(strings.Join(where, " AND "), args...), nil
}

const columns = "p.process, p.id, p.status, p.version, p.began_at, p.last_at, p.ended_at"

func (p *Process) scan(scan func(...any) error, more ...any) error {
	var began, last, ended dbtime.Time
	err := scan(append([]any{&p.Process, &p.ID, &p.Status, &p.Version, &began, &last, &ended}, more...)...)
	p.BeganAt, p.LastAt = began.Time, last.Time
	if ended.Valid {
		p.EndedAt = &ended.Time
	}
	return err
}

// Find returns processes, the oldest first, a page at a time.
func (s *Store) Find(ctx context.Context, f Filter) (p Page, err error) {
	p.Processes = []Process{}
	f.Limit = cmp.Or(f.Limit, page)
	match, err := s.match(f)
	if err != nil {
		return p, err
	}
	after, err := place(s.db.Dialect(), f.After)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, people)
	defer cancel()
	err = dbrows.Each(ctx, s.db, "SELECT "+columns+" FROM processes AS p WHERE ? AND ? ORDER BY p.began_at, p.process, p.id LIMIT ?", func(scan func(...any) error) error {
		var found Process
		err := found.scan(scan)
		p.Processes = append(p.Processes, found)
		return err
	}, match, after, f.Limit+1)
	if err != nil {
		return p, fmt.Errorf("processes: look for them: %w", err)
	}
	if len(p.Processes) > f.Limit {
		p.Processes = p.Processes[:f.Limit]
		last := p.Processes[f.Limit-1]
		p.Next = last.BeganAt.Format(time.RFC3339Nano) + "," + last.Process + "," + last.ID
	}
	return p, nil
}

// CheckAfter says whether a page can begin behind a place.
func CheckAfter(after string) error {
	_, _, _, err := parsePlace(after)
	return err
}

func parsePlace(after string) (began time.Time, process, id string, err error) {
	if after == "" {
		return began, "", "", nil
	}
	at, rest, _ := strings.Cut(after, ",")
	process, id, ok := strings.Cut(rest, ",")
	began, err = time.Parse(time.RFC3339Nano, at)
	if err != nil || began.Year() < 1000 || !ok || !outbox.Storable(rest) {
		return began, "", "", fmt.Errorf("processes: %q is not the end of a page: take it from the page before", after)
	}
	return began, process, id, nil
}

// place is the condition of what is behind the end of a page.
func place(d schema.Dialect, after string) (schema.QueryWithArgs, error) {
	began, process, id, err := parsePlace(after)
	if err != nil || after == "" {
		return bun.SafeQuery("TRUE"), err
	}
	return bun.SafeQuery("(p.began_at, p.process, p.id) > (?, ?, ?)", dbtime.Value(d, began), process, id), nil
}

// Show returns a process, or [ErrNone].
func (s *Store) Show(ctx context.Context, name, id string) (*Details, error) {
	ctx, cancel := context.WithTimeout(ctx, people)
	defer cancel()
	match, err := s.match(Filter{Process: name, IDs: []string{id}})
	if err != nil {
		return nil, err
	}
	d := &Details{Heard: []process.Heard{}}
	var state, heard []byte
	err = d.scan(s.db.QueryRowContext(ctx, "SELECT "+columns+", p.state, p.state_version, p.heard FROM processes AS p WHERE ?", match).Scan, &state, &d.StateVersion, &heard)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("processes: %w: %s %q", ErrNone, name, id)
	}
	if err == nil {
		err = json.Unmarshal(heard, &d.Heard)
	}
	if err != nil {
		return nil, fmt.Errorf("processes: read %s %q: %w", name, id, err)
	}
	d.State = state
	timers, err := timerdb.New(s.provider.DB(), s.db).Find(ctx, outbox.TimerFilter{Owner: process.Owner(name, id), Limit: most})
	if err != nil {
		return nil, err
	}
	d.Timers = timers.Timers
	letters, err := subscription.NewDeadLetters(s.provider).List(ctx, subscription.DeadLetterFilter{Subscription: name, Key: id}, subscription.DeadLetterPage{Limit: most})
	if err != nil {
		return nil, err
	}
	d.Letters, d.LettersTotal = letters.Letters, letters.Total
	return d, nil
}
