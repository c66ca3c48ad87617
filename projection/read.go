package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/uow"
)

// lookAgain is how long a program believes which build it reads.
const lookAgain = time.Second

// readings are what a context's program reads, by projection.
type readings struct {
	units *uow.Manager

	mu       sync.Mutex
	programs map[string]*program // By the projection's name.
	by       map[string]*reading
}

type readingsKey struct{}

func readingsOf(units *uow.Manager) *readings {
	return units.Keep(readingsKey{}, func() any {
		return &readings{units: units, programs: map[string]*program{}, by: map[string]*reading{}}
	}).(*readings)
}

// know notes the program's own versions.
func (r *readings) know(ps *Projections) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range ps.all {
		r.programs[p.name()] = p.current()
	}
}

// reading is which build of a projection is read.
type reading struct {
	name     string
	provider uow.Provider
	version  int // The program's own; 0: it has none.

	// mu is held while it moves to another build, and read-locked while Wait looks how far
	// the one is that it reads. Otherwise a Wait could be content with the one before, which
	// went on after it was compared with the next.
	mu    sync.RWMutex
	build *build
	at    time.Time
}

// projection is the reading of a projection.
func (r *readings) projection(name string) (*reading, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found, ok := r.by[name]; ok {
		return found, nil
	}
	provider, version := "", 0
	if g := r.programs[name]; g != nil {
		provider, version = g.Provider, g.Version
	}
	p, err := r.units.Provider(provider)
	if err != nil {
		return nil, err
	}
	found := &reading{name: name, provider: p, version: version}
	r.by[name] = found
	return found, nil
}

// owner is the name of the projection that a table is of.
func (r *readings) owner(ctx context.Context, table string) (string, error) {
	r.mu.Lock()
	for name, g := range r.programs {
		if g.table(table) != nil {
			r.mu.Unlock()
			return name, nil
		}
	}
	r.mu.Unlock()
	for _, p := range r.units.Providers() {
		builds, err := load(ctx, p.Reader(), nil)
		if err != nil {
			return "", err
		}
		for _, b := range builds {
			if b.tables[table] != nil {
				return b.projection, nil
			}
		}
	}
	return "", fmt.Errorf("projection: no projection in the database has a table %s yet: an engine that runs it makes it", table)
}

// current is the build that is read now.
func (r *reading) current(ctx context.Context, again bool) (*build, error) {
	r.mu.RLock()
	b, at := r.build, r.at
	r.mu.RUnlock()
	if b != nil && !again && time.Since(at) < lookAgain {
		return b, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.build != nil && !again && time.Since(r.at) < lookAgain {
		return r.build, nil
	}
	builds, err := load(ctx, r.provider.Reader(), []string{r.name})
	if err != nil {
		return nil, err
	}
	next := choose(builds, r.version, r.build)
	if next == nil {
		return nil, fmt.Errorf("projection %s: it has no tables in provider %q yet: an engine that runs it makes them", r.name, r.provider.Name())
	}
	r.build, r.at = next, time.Now()
	return next, nil
}

// choose is the build that a program of a version reads: its own once that has caught up,
// as long as somebody feeds it; otherwise the live one. It stays with the one that it has
// read until the other one isn't behind it; builds are from one snapshot.
func choose(builds []*build, version int, before *build) *build {
	next := liveOf(builds)
	if next == nil {
		return nil
	}
	if next.version != version {
		for _, b := range builds {
			if b.version == version && b.ready.Valid && b.fed() {
				next = b
			}
		}
	}
	if before == nil || before.build == next.build {
		return next
	}
	i := slices.IndexFunc(builds, func(b *build) bool { return b.build == before.build })
	if i < 0 {
		return next
	}
	if slices.ContainsFunc(builds[i].shards, func(s shard) bool { return s.position > next.lowest() }) {
		return builds[i]
	}
	return next
}

// Find reads the rows that a query selects; nil selects all. It reads the tables of the
// program's own Version once they have caught up, whichever version is in use for
// others, and until then the ones in use, where columns that these lack are zero. A
// program's own version is that of the projections that it has given to its engine, or to
// [New]. It reads what is committed, also within a unit of work.
func (t *Table[R]) Find(ctx context.Context, units *uow.Manager, where func(*bun.SelectQuery) *bun.SelectQuery) ([]R, error) {
	if _, err := batchOf(ctx); err == nil {
		return nil, fmt.Errorf("projection: Find of table %s in a handler would not see what the handlers before it have written: use Change", t.name)
	}
	all := readingsOf(units)
	name, err := all.owner(ctx, t.name)
	if err != nil {
		return nil, err
	}
	r, err := all.projection(name)
	if err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		b, err := r.current(ctx, again)
		if err != nil {
			return nil, err
		}
		rows, err := t.find(ctx, r.provider.Reader(), b, where)
		if err == nil {
			return rows, nil
		}
		if again || !missing(err) { // The build may have been removed.
			return nil, fmt.Errorf("projection %s: read %s of version %d: %w", name, t.name, b.version, err)
		}
	}
}

func (t *Table[R]) find(ctx context.Context, db *bun.DB, b *build, where func(*bun.SelectQuery) *bun.SelectQuery) ([]R, error) {
	rows := []R{}
	of := t.schema(db)
	q := db.NewSelect().Model(&rows).ModelTableExpr("? AS ?", bun.Ident(physical(t.name, b.build)), bun.Ident(of.Alias))
	for _, c := range t.columns(db) {
		if slices.Contains(b.tables[t.name], c) {
			q = q.Column(c)
		}
	}
	if where != nil {
		q = where(q)
	}
	err := q.Scan(ctx)
	return rows, err
}

// missing says that a table isn't there.
func missing(err error) bool {
	return slices.Contains([]string{"42P01", "sqlite 1"}, dberr.CodeOf(err))
}

// Wait waits until the version that this program reads shows everything that was committed
// before the call, or has stopped before that at an event that can't be handled, or ctx is
// done: these are a *BehindError. Give ctx a deadline.
func Wait(ctx context.Context, units *uow.Manager, name string) error {
	r, err := readingsOf(units).projection(name)
	if err != nil {
		return err
	}
	head, err := historydb.Head(ctx, r.provider.Reader())
	if err != nil {
		return err
	}
	return r.wait(ctx, head)
}

// WaitFor is Wait for a position, such as another request's history.Head.
func WaitFor(ctx context.Context, units *uow.Manager, name string, position int64) error {
	r, err := readingsOf(units).projection(name)
	if err != nil {
		return err
	}
	return r.wait(ctx, position)
}

const (
	firstLook   = 2 * time.Millisecond
	longestLook = 50 * time.Millisecond
)

func (r *reading) wait(ctx context.Context, want int64) error {
	if want == 0 { // nothing was ever kept
		want = beginning
	}
	behind := &BehindError{Name: r.name, Want: want}
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		have, stopped, err := r.come(ctx, want)
		switch {
		case err == nil && have >= want:
			return nil
		case err == nil:
			behind.Have, behind.Stopped = have, stopped
			if stopped != "" {
				return behind
			}
		case ctx.Err() == nil:
			return err
		}
		if !sleep(ctx, pause) {
			behind.Err = context.Cause(ctx)
			return behind
		}
	}
}

// come is how far the build is that is read, and the error that keeps it from coming as far as
// want.
func (r *reading) come(ctx context.Context, want int64) (position int64, stopped string, err error) {
	for {
		b, err := r.current(ctx, false)
		if err != nil {
			return 0, "", err
		}
		r.mu.RLock()
		if r.build != b { // It has moved, or has only looked again.
			r.mu.RUnlock()
			continue
		}
		var n int
		err = r.provider.Reader().NewRaw("SELECT count(*), coalesce(min(position), 0), coalesce(max(CASE WHEN position < ? THEN error END), '') FROM projection_positions WHERE projection = ? AND build = ?", want, b.projection, b.build).
			Scan(ctx, &n, &position, &stopped)
		r.mu.RUnlock()
		if err != nil {
			return 0, "", fmt.Errorf("projection %s: read its position: %w", r.name, err)
		}
		if n > 0 {
			return position, stopped, nil
		}
		if _, err := r.current(ctx, true); err != nil { // It was removed.
			return 0, "", err
		}
	}
}

// BehindError is a projection that was not up to date in time.
type BehindError struct {
	Name       string
	Have, Want int64
	Stopped    string // The error it is stuck with, if it is.
	Err        error  // Why ctx was done; nil: it is stuck.
}

func (e *BehindError) Error() string {
	have := fmt.Sprintf("to position %d", e.Have)
	if e.Have == beginning {
		have = "to no event"
	}
	text := fmt.Sprintf("projection %s: it has come %s and not to %d yet", e.Name, have, e.Want)
	if e.Stopped != "" {
		return text + ", and has stopped: " + e.Stopped
	}
	return text + ": `waybill projections list` says how fast it goes, and whom it waits for"
}

func (e *BehindError) Unwrap() error { return e.Err }

// errNone is a projection that isn't there.
var errNone = errors.New("there is no such projection; `waybill projections list` has them")
