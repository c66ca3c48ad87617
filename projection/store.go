package projection

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/migrate"
)

// What a build can be.
const (
	Building = "building" // It is behind, and nobody reads it by the view.
	Ready    = "ready"    // It has caught up, and waits for the change.
	Live     = "live"     // The view shows it.
	Old      = "old"      // It was live.
)

// beginning is the position before all others.
const beginning = math.MinInt64

// build is a row of projections, with its positions.
type build struct {
	projection string
	build      int
	version    int
	context    string
	status     string
	tables     map[string][]string // Columns by table; nil: they are not made.
	began      time.Time
	age        time.Duration // Since then, by the database's clock.
	ready      dbtime.Time
	old        time.Duration // Since it is old; 0: it isn't.
	shards     []shard
}

// shard is a row of projection_positions.
type shard struct {
	shard    int
	position int64
	atHead   bool
	owner    string
	leased   bool // The lease hasn't passed.
	fed      bool // The same, or who gave it back will take it again: see [errNewer].
	failedAt dbtime.Time
	Failure
	events             int64
	perSecond, closing float64
	heldSince          time.Time
	heldBy             []string // Open transactions that it waits for; see historydb.Page.
}

// Failure is why a build is stuck.
type Failure struct {
	Position int64     `json:"position"` // Of the event that fails.
	Event    string    `json:"event"`    // Its type and id.
	Error    string    `json:"error"`
	Tries    int       `json:"tries"`
	Since    time.Time `json:"since"`
	NextAt   time.Time `json:"next_at"`
}

// lowest and highest are how far the slowest and the fastest shard are.
func (b *build) lowest() int64 {
	low := int64(math.MaxInt64)
	for _, s := range b.shards {
		low = min(low, s.position)
	}
	if len(b.shards) == 0 {
		return beginning
	}
	return low
}

func (b *build) atHead() bool {
	return len(b.shards) > 0 && !slices.ContainsFunc(b.shards, func(s shard) bool { return !s.atHead })
}

// fed says that somebody feeds a part of it.
func (b *build) fed() bool {
	return slices.ContainsFunc(b.shards, func(s shard) bool { return s.fed })
}

// load reads the builds of projections, all for nil, in their order.
func load(ctx context.Context, db bun.IDB, names []string) (builds []*build, err error) {
	d := db.Dialect()
	now := "(SELECT " + dbtime.Now(d) + ")" // once per statement
	where, args := "TRUE", []any(nil)
	if names != nil {
		where, args = "b.projection IN (?)", []any{bun.List(append([]string{""}, names...))}
	}
	err = dbrows.Each(ctx, db, "SELECT b.projection, b.build, b.version, b.context, b.status, b.tables, b.began_at, "+dbtime.Seconds(d, "b.began_at", now)+", b.ready_at, coalesce("+dbtime.Seconds(d, "b.old_at", now)+", 0),"+
		" p.shard, p.position, p.at_head, p.owner, "+leased(d)+", coalesce(p.next_at > "+dbtime.In(d, -usual().lease)+", FALSE), p.tries, p.failed_at, coalesce(p.failed_position, 0), coalesce(p.failed_event, ''), p.next_at, coalesce(p.error, ''),"+
		" p.events, p.per_second, p.closing, p.held_since, coalesce(p.held_by, '') FROM projections AS b LEFT JOIN projection_positions AS p ON p.projection = b.projection AND p.build = b.build"+
		" WHERE "+where+" ORDER BY b.projection, b.build, p.shard", func(scan func(...any) error) error {
		var b build
		var tables *string
		var began, next dbtime.Time
		var age, old float64
		var s shard
		var number, tries *int
		var position, events *int64
		var atHead, leased *bool
		var again bool
		var owner *string
		var perSecond, closing *float64
		var held dbtime.Time
		var heldBy string
		err := scan(&b.projection, &b.build, &b.version, &b.context, &b.status, &tables, &began, &age, &b.ready, &old,
			&number, &position, &atHead, &owner, &leased, &again, &tries, &s.failedAt, &s.Failure.Position, &s.Event, &next, &s.Error, &events, &perSecond, &closing, &held, &heldBy)
		if err != nil {
			return err
		}
		if n := len(builds); n == 0 || builds[n-1].projection != b.projection || builds[n-1].build != b.build {
			b.began, b.age, b.old = began.Time, time.Duration(age*float64(time.Second)), time.Duration(old*float64(time.Second))
			if tables != nil {
				if err := json.Unmarshal([]byte(*tables), &b.tables); err != nil {
					return fmt.Errorf("tables of projection %s, build %d: %w", b.projection, b.build, err)
				}
			}
			builds = append(builds, &b)
		}
		if number != nil {
			s.shard, s.position, s.atHead, s.owner, s.leased, s.fed = *number, *position, *atHead, *owner, *leased, *leased || again
			s.Tries, s.Since, s.NextAt, s.events, s.perSecond, s.closing = *tries, s.failedAt.Time, next.Time, *events, *perSecond, *closing
			if heldBy != "" {
				s.heldSince, s.heldBy = held.Time, strings.Split(heldBy, ",")
			}
			last := builds[len(builds)-1]
			last.shards = append(last.shards, s)
		}
		return nil
	}, args...)
	if err != nil {
		return nil, fmt.Errorf("projection: read what there is: %w", err)
	}
	return builds, nil
}

// of are the builds of one projection.
func of(builds []*build, name string) (some []*build) {
	for _, b := range builds {
		if b.projection == name {
			some = append(some, b)
		}
	}
	return some
}

func liveOf(builds []*build) *build {
	for _, b := range builds {
		if b.status == Live {
			return b
		}
	}
	return nil
}

// newest is the last build of a version.
func newest(builds []*build, version int) (last *build) {
	for _, b := range builds {
		if b.version == version {
			last = b
		}
	}
	return last
}

// declare sees to it that there is a build of a version. The first of a projection is
// live at once: nobody could read anything else. Its number is one more than in the
// snapshot that shows that there is none of the version: of two who declare at once, one
// finds the number taken, and leaves it to the other.
func declare(ctx context.Context, db bun.IDB, g *program) error {
	_, err := db.ExecContext(ctx, "INSERT INTO projections (projection, build, version, context, status)"+
		" SELECT ?0, coalesce(max(build), 0) + 1, ?1, ?2, 'building' FROM projections WHERE projection = ?0 HAVING coalesce(sum(CASE WHEN version = ?1 THEN 1 END), 0) = 0"+
		" ON CONFLICT DO NOTHING", g.Name, g.Version, g.domain.Name())
	if err != nil {
		return fmt.Errorf("projection %s: declare version %d: %w", g.Name, g.Version, err)
	}
	return nil
}

// errGone is a build that was removed, or is not as it was.
var errGone = errors.New("projection: the build is not as it was")

// make makes the tables and positions of a build, once. If nothing is live, it is live
// from now on.
func (g *program) make(ctx context.Context, number int) error {
	db := g.provider.DB()
	err := dbtx.Run(ctx, db, func(tx bun.Tx) error {
		// The rows of all builds: another build may be about to be the first live one.
		builds, err := lockBuilds(ctx, tx, g.Name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(builds, func(b *build) bool { return b.build == number })
		switch {
		case i < 0:
			return errGone
		case builds[i].tables != nil:
			return nil
		}
		if d := builds[i].context; d != g.domain.Name() {
			return fmt.Errorf("context %s has a projection of this name in this database: give one another Name", d)
		}
		tables, err := g.create(ctx, tx, number)
		if err != nil {
			return err
		}
		text, err := json.Marshal(tables)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE projections SET tables = ?, began_at = "+dbtime.Now(db.Dialect())+" WHERE projection = ? AND build = ?", string(text), g.Name, number); err != nil {
			return err
		}
		for s := range g.Shards {
			// A removed build may have had the number. Its frozen owner's fence must not be one of
			// this build's, so they begin anywhere.
			if _, err := tx.ExecContext(ctx, "INSERT INTO projection_positions (projection, build, shard, position, fence) VALUES (?, ?, ?, ?, ?)", g.Name, number, s, int64(beginning), rand.Int64N(1<<62)); err != nil {
				return err
			}
		}
		if live := liveOf(builds); live == nil {
			return show(ctx, tx, g.Name, nil, &build{projection: g.Name, build: number, tables: tables})
		}
		return nil
	})
	if err != nil {
		if grant, lookErr := migrate.LacksCreate(ctx, db, ""); dberr.CodeOf(err) == dberr.Denied && lookErr == nil && grant != "" {
			err = fmt.Errorf("%w; the role that runs projections makes their tables and views: as the owner of the schema, %s", err, grant)
		}
		return fmt.Errorf("projection %s: make the tables of version %d: %w", g.Name, g.Version, err)
	}
	return nil
}

// create makes the tables of a build, and returns the columns of each.
func (g *program) create(ctx context.Context, tx bun.Tx, number int) (map[string][]string, error) {
	tables := map[string][]string{}
	for _, t := range g.Tables {
		for _, statement := range t.create(g.provider.DB(), number) {
			if _, err := tx.Tx.ExecContext(ctx, statement); err != nil {
				return nil, fmt.Errorf("%.200s: %w", statement, err)
			}
		}
		if text := t.text(); text != "" {
			tables[sqlText] = append(tables[sqlText], text)
		}
	}
	for _, t := range g.tables {
		columns, err := columnsOf(ctx, tx, physical(t.name, number))
		if err != nil {
			return nil, err
		}
		if len(columns) == 0 {
			return nil, fmt.Errorf("nothing creates table {%s}, which its projection.SQL names", t.name)
		}
		tables[t.name] = columns
	}
	return tables, nil
}

// sqlText is what definitions by projection.SQL are kept under, among the tables.
const sqlText = ""

// lockBuilds locks the rows of a projection's builds, and reads them.
func lockBuilds(ctx context.Context, tx bun.Tx, name string) ([]*build, error) {
	if !sqlite(tx) {
		// In their order, so that nobody waits crosswise. What is read has a later snapshot:
		// that of the statement which waits is from before.
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM projections WHERE projection = ? ORDER BY build FOR UPDATE", name); err != nil {
			return nil, err
		}
	}
	return load(ctx, tx, []string{name})
}

// fits says whether tables of the program's version that are there are those of the
// program.
func (g *program) fits(b *build) error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("projection %s: "+format, append([]any{g.Name}, args...)...))
	}
	var texts []string
	for _, t := range g.Tables {
		if text := t.text(); text != "" {
			texts = append(texts, text)
			continue
		}
		name := t.names()[0]
		have, want := b.tables[name], t.columns(g.provider.DB())
		if have == nil {
			fail("the tables of version %d in the database have no table %s: raise Version", g.Version, name)
			continue
		}
		for _, c := range want {
			if !slices.Contains(have, c) {
				fail("the tables of version %d in the database have no column %q: raise Version", g.Version, c)
			}
		}
		for _, c := range have {
			if !slices.Contains(want, c) {
				fail("the tables of version %d in the database have the column %q, and this build has not: raise Version", g.Version, c)
			}
		}
	}
	if !slices.Equal(texts, b.tables[sqlText]) {
		fail("the tables of version %d in the database were made by other statements than its projection.SQL has: raise Version", g.Version)
	}
	return errors.Join(errs...)
}

// loses says which columns of the live build's view a program doesn't have.
func (g *program) loses(live *build) error {
	var errs []error
	for name, columns := range live.tables {
		if name == sqlText {
			continue
		}
		t := g.table(name)
		if t == nil {
			errs = append(errs, fmt.Errorf("projection %s: version %d has no table %s that version %d has, and others read its view: keep it, or give the projection a new Name and its tables new ones", g.Name, g.Version, name, live.version))
			continue
		}
		if want := t.of.columns(g.provider.DB()); want != nil {
			errs = append(errs, lost(g.Name, g.Version, live.version, columns, want))
		}
	}
	return errors.Join(errs...)
}

func lost(name string, version, before int, columns, want []string) error {
	var errs []error
	for _, c := range columns {
		if !slices.Contains(want, c) {
			errs = append(errs, fmt.Errorf("projection %s: version %d has no column %q that version %d has, and others read its view: keep it, or give the projection a new Name and its tables new ones", name, version, c, before))
		}
	}
	return errors.Join(errs...)
}
