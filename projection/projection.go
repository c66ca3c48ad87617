// Package projection keeps tables for reading, made of a context's history, that can
// be made again at any time.
//
// Handlers see every kept event once, in one order; what they write commits with the
// projection's position. A new Version, or `waybill projections rebuild`, builds new
// tables beside the ones in use and changes over when they have caught up.
package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

const (
	defaultBatch   = 500
	defaultKeepOld = 24 * time.Hour
	maxBatch       = 10_000
	maxShards      = 64
)

// Projection describes a projection. The engine runs it, in one process at a time.
type Projection struct {
	// Name is the projection's: small letters, digits and hyphens. Under another one it is
	// another projection. A database has one of a name.
	Name string
	// Version is that of handlers and tables: raise it when they change, and the
	// tables are built anew. Defaults to 1.
	Version int
	// Tables are what it writes. At least one.
	Tables []Definition
	// Handlers are at most one per event type.
	Handlers []Handler
	// Units is the context whose history is read. Defaults to the engine's context.
	Units *uow.Manager
	// Provider is where history and tables are. Defaults to the first of Units.
	Provider string
	// Batch is how many events share a commit, at most. Defaults to 500.
	Batch int
	// Shards divides the aggregates, by their identity, among this many positions
	// that go on side by side; then there is no order between different aggregates. A build
	// keeps the number that it began with. Defaults to 1.
	Shards int
	// Manual waits with a change of versions for `waybill projections switch`.
	Manual bool
	// KeepOld is how long the tables of the version before stay after a change. They are
	// kept up to date, and stay for longer, as long as a program of that version runs.
	// Defaults to 24 h.
	KeepOld time.Duration
	// Previous is the version before, for a program that keeps it up to date while
	// this one is built. Without it the old tables stay as they are if no older
	// program runs any more; see [Build].
	Previous *Projection
}

// program is the code of one version.
type program struct {
	Projection
	provider uow.Provider
	domain   *domain.Domain
	byType   map[*domain.EventType]Handler
	names    []string // of the events, without their versions
	tables   []tableName
}

// tableName is a table of a projection, and who knows its columns.
type tableName struct {
	name string
	of   Definition
}

// projection is one that this process runs, in one or two versions, the newer first.
type projection struct {
	programs []*program
}

func (p *projection) name() string      { return p.programs[0].Name }
func (p *projection) current() *program { return p.programs[0] }
func (p *projection) of(v int) *program {
	for _, q := range p.programs {
		if q.Version == v {
			return q
		}
	}
	return nil
}

// Projections are those of one context. It is safe for concurrent use.
type Projections struct {
	units *uow.Manager
	log   *slog.Logger
	all   []*projection
	wait  waits
}

// New checks the projections of a context, and returns all mistakes together. It opens
// nothing. An engine calls it; a program that only reads may, so that [Table.Find] knows
// its version.
func New(units *uow.Manager, all []Projection, log *slog.Logger) (*Projections, error) {
	if units == nil {
		return nil, errors.New("projection: the units of work are nil: make them with uow.New first, and look at its error")
	}
	ps := &Projections{units: units, log: cmp.Or(log, slog.Default()), wait: usual()}
	var errs []error
	names, tables := map[string]bool{}, map[string]string{}
	for i, p := range all {
		about := fmt.Sprintf("projection %s: ", p.Name)
		if p.Name == "" {
			about = fmt.Sprintf("projection: Projections[%d]: ", i)
		}
		fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(about+format, args...)) }
		if names[p.Name] && p.Name != "" {
			fail("there are two of this name: give one another Name")
		}
		names[p.Name] = true
		if p.Units != nil && p.Units != units {
			fail("its Units are of context %s, and it stands among those of %s: leave them out, or move it", p.Units.Domain().Name(), units.Domain().Name())
			continue
		}
		p.Units = units
		made := &projection{}
		for q := &p; q != nil; q = q.Previous {
			g, problems := compile(*q, units)
			for _, problem := range problems {
				fail("%w", problem)
			}
			if g == nil {
				break
			}
			made.programs = append(made.programs, g)
			if q != &p {
				errs = append(errs, previous(made.programs[0], g)...)
				if q.Previous != nil {
					fail("Previous has a Previous: the version before is enough")
				}
				break
			}
			for _, t := range g.tables {
				if other, ok := tables[t.name]; ok && other != p.Name {
					fail("its table %s is one of projection %s, too: give it another name", t.name, other)
				}
				tables[t.name] = p.Name
			}
		}
		ps.all = append(ps.all, made)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	readingsOf(units).know(ps)
	return ps, nil
}

func previous(p, before *program) (errs []error) {
	if before.Name != p.Name || before.Provider != p.Provider {
		errs = append(errs, fmt.Errorf("projection %s: Previous has another Name or Provider: it is the version before of the same", p.Name))
	}
	if before.Version >= p.Version {
		errs = append(errs, fmt.Errorf("projection %s: Previous has version %d, which is not before %d: raise Version", p.Name, before.Version, p.Version))
	}
	return errs
}

var (
	projectionName = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	plainName      = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)
)

// maxTable leaves room for __build and for what is put behind it, in a name of PostgreSQL.
const maxTable = 45

// compile checks one version; all that is wrong with it is returned.
func compile(p Projection, units *uow.Manager) (_ *program, errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !projectionName.MatchString(p.Name) || len(p.Name) > 100 {
		fail("the Name %q is not like current-loans: give it small letters, digits and hyphens, at most 100", p.Name)
	}
	for _, n := range []struct {
		name      string
		is        int
		max       int
		otherwise string
	}{
		{"Version", p.Version, 1 << 30, "1"}, {"Batch", p.Batch, maxBatch, "500"}, {"Shards", p.Shards, maxShards, "1"},
	} {
		if n.is < 0 || n.is > n.max {
			fail("%s is %d: give 1 to %d, or 0 for %s", n.name, n.is, n.max, n.otherwise)
		}
	}
	if p.KeepOld < 0 {
		fail("KeepOld is %v: above 0, or 0 for %v", p.KeepOld, defaultKeepOld)
	}
	p.Version, p.Batch, p.Shards, p.KeepOld = cmp.Or(p.Version, 1), cmp.Or(p.Batch, defaultBatch), cmp.Or(p.Shards, 1), cmp.Or(p.KeepOld, defaultKeepOld)
	provider, err := units.Provider(p.Provider)
	if err != nil {
		return nil, append(errs, err)
	}
	p.Provider = provider.Name()
	g := &program{Projection: p, provider: provider, domain: units.Domain(), byType: map[*domain.EventType]Handler{}}
	if len(p.Tables) == 0 {
		fail("it has no Tables: add what projection.NewTable returns, or projection.SQL")
	}
	for i, t := range p.Tables {
		if t == nil {
			fail("Tables[%d] is nil", i)
			continue
		}
		errs = append(errs, t.check(provider.DB())...)
		for _, name := range t.names() {
			switch {
			case !plainName.MatchString(name) || len(name) > maxTable:
				fail("the table's name %q is not like current_loans: give it small letters, digits and underscores, at most %d", name, maxTable)
			case g.table(name) != nil:
				fail("two of its tables are called %s", name)
			}
			g.tables = append(g.tables, tableName{name, t})
		}
	}
	errs = append(errs, g.handlers()...)
	return g, errs
}

func (g *program) handlers() (errs []error) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(g.Handlers) == 0 {
		fail("it has no Handlers: add projection.On for the events that it is made of")
	}
	for i, h := range g.Handlers {
		switch {
		case h.resolve == nil:
			fail("Handlers[%d] is empty: make it with projection.On", i)
			continue
		case h.handle == nil:
			fail("Handlers[%d] has no function", i)
			continue
		}
		t, err := h.resolve(g.domain)
		if err != nil {
			fail("Handlers[%d]: %w", i, err)
			continue
		}
		switch {
		case !slices.Contains(g.domain.Events(), t):
			fail("Handlers[%d]: %s is no event, and isn't in the history: handle the event that comes of it", i, t.Name)
		case t.Foreign && t.Category == "":
			fail("Handlers[%d]: %s is another context's: say which stream is kept for it, with domain.From in its declaration", i, t.Name)
		case g.byType[t].handle != nil:
			fail("Handlers[%d]: there are two for %s: put both into one", i, t.Name)
		}
		g.byType[t] = h
		g.names = append(g.names, t.Names()...)
	}
	return errs
}

func (g *program) table(name string) *tableName {
	for i, t := range g.tables {
		if t.name == name {
			return &g.tables[i]
		}
	}
	return nil
}

// Units are the context's units of work.
func (ps *Projections) Units() *uow.Manager { return ps.units }

// Names are those of the projections that have their tables in a provider.
func (ps *Projections) Names(provider string) (names []string) {
	for _, p := range ps.all {
		if p.current().Provider == provider {
			names = append(names, p.name())
		}
	}
	return names
}

// Foreign are the events of other contexts that the projections handle: somebody has to
// keep them in the history of the provider.
func (ps *Projections) Foreign(provider string) (types []*domain.EventType) {
	for _, p := range ps.all {
		for _, g := range p.programs {
			for t := range g.byType {
				if t.Foreign && g.Provider == provider && !slices.Contains(types, t) {
					types = append(types, t)
				}
			}
		}
	}
	slices.SortFunc(types, func(a, b *domain.EventType) int { return strings.Compare(a.Name, b.Name) })
	return types
}

// Handler is one event type's handler. Make it with [On].
type Handler struct {
	resolve func(*domain.Domain) (*domain.EventType, error)
	handle  func(ctx context.Context, event any) error
}

// On calls handle for events of type E, own ones and foreign ones that have a
// [domain.From]. It writes with the methods of [Table] and with [Exec], and nowhere else: a
// repository's Save, command.Send and uow.DB are errors in it, as it runs again with
// every rebuild, and may run twice for one event, of which one takes effect.
// domain.MetadataFrom(ctx) is the event's.
//
// An error stops the projection where it is, visibly, and it is tried again after
// 1 s, 2 s and so on up to a minute.
func On[E any](handle func(ctx context.Context, e E) error) Handler {
	h := Handler{resolve: domain.EventTypeFor[E]}
	if handle != nil {
		h.handle = func(ctx context.Context, event any) error { return handle(ctx, event.(E)) }
	}
	return h
}
