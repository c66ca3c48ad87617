package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/uow"
)

// Progress is how far a build's tables are.
type Progress struct {
	Name    string `json:"projection"`
	Context string `json:"context"`
	Version int    `json:"version"`
	Build   int    `json:"build"` // Counts rebuilds.
	Status  string `json:"status"`
	// Position is how far its slowest shard is; 0: no event has taken effect.
	Position int64 `json:"position"`
	Head     int64 `json:"head"`
	// Behind says that there may be events that have not taken effect: since when it is so,
	// see BehindSeconds.
	Behind bool `json:"behind"`
	// BehindSeconds is how old the first event is that has not taken effect; 0 if there is
	// none.
	BehindSeconds float64       `json:"behind_seconds"`
	Events        int64         `json:"events"` // That have taken effect in it.
	PerSecond     float64       `json:"events_per_second"`
	ETA           time.Duration `json:"-"`           // -1: not known.
	ETASeconds    float64       `json:"eta_seconds"` // The same.
	// Fed says that a process feeds all of it; Owners are those that feed it, or did last.
	Fed     bool      `json:"fed"`
	Owners  []string  `json:"owners"`
	Failure *Failure  `json:"failure,omitempty"` // Why it is stuck.
	Held    *Held     `json:"held,omitempty"`    // Whom it waits for.
	BeganAt time.Time `json:"began_at"`
}

// Held says that events which are committed can't be read yet, as transactions that have
// written events before them are open: theirs come first.
type Held struct {
	Since time.Time     `json:"since"`
	By    []Transaction `json:"by"` // The oldest first, at most ten.
}

// String names the oldest of them.
func (h Held) String() string {
	more := ""
	if n := len(h.By) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	return "since " + h.Since.UTC().Format(time.RFC3339) + " for " + h.By[0].String() + more
}

// Transaction is one that is open. What the role of the program that asks may not see of it
// is empty.
type Transaction struct {
	PID         int       `json:"pid"`                // 0: it is prepared, and has no session.
	Prepared    string    `json:"prepared,omitempty"` // What it was prepared as.
	Application string    `json:"application"`
	User        string    `json:"user"`
	State       string    `json:"state"`
	Since       time.Time `json:"since,omitzero"`
}

// String says whose it is.
func (t Transaction) String() string {
	text := fmt.Sprintf("pid %d, application %q", t.PID, t.Application)
	if t.PID == 0 {
		text = fmt.Sprintf("prepared transaction %q", t.Prepared)
	}
	text += ", user " + t.User
	if !t.Since.IsZero() {
		text += ", open since " + t.Since.UTC().Format(time.RFC3339)
	}
	if t.State != "" {
		text += ", " + t.State
	}
	return text
}

// Remedy ends it. What it has written is lost then, unless a prepared one is committed.
func (t Transaction) Remedy() string {
	if t.PID == 0 {
		return "COMMIT PREPARED " + migrate.Quote(t.Prepared) + " or ROLLBACK PREPARED " + migrate.Quote(t.Prepared)
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d)", t.PID)
}

// List is how far every build of every projection of a database is, by name and build.
func List(ctx context.Context, p uow.Provider) ([]Progress, error) {
	db := p.Reader()
	builds, err := load(ctx, db, nil)
	if err != nil {
		return nil, err
	}
	all := make([]Progress, 0, len(builds))
	if len(builds) == 0 {
		return all, nil
	}
	head, err := historydb.Head(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, b := range builds {
		g := progress(b, head)
		if g.Behind && len(b.shards) > 0 {
			if g.BehindSeconds, err = age(ctx, db, b.lowest()); err != nil {
				return nil, err
			}
		}
		if g.Held, err = held(ctx, db, b); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// held is whom a build waits for: by the shard that has waited longest for somebody who
// hasn't ended since.
func held(ctx context.Context, db bun.IDB, b *build) (*Held, error) {
	shards := slices.SortedFunc(slices.Values(b.shards), func(a, b shard) int { return a.heldSince.Compare(b.heldSince) })
	for _, s := range shards {
		if !s.leased || len(s.heldBy) == 0 {
			continue
		}
		open, err := historydb.Writers(ctx, db, s.heldBy)
		if err != nil {
			return nil, err
		}
		if len(open) > 0 {
			return heldBy(s.heldSince, open), nil
		}
	}
	return nil, nil //nolint:nilnil // it waits for nobody
}

func heldBy(since time.Time, open []historydb.Writer) *Held {
	h := &Held{Since: since}
	for _, w := range open {
		h.By = append(h.By, Transaction(w))
	}
	return h
}

// progress is that of a build, without the age of what is behind it.
func progress(b *build, head int64) Progress {
	g := Progress{
		Name: b.projection, Context: b.context, Version: b.version, Build: b.build, Status: b.status, Head: head, ETA: -1, BeganAt: b.began,
		Position: b.lowest(), Fed: len(b.shards) > 0, Owners: []string{},
	}
	closing := 0.0
	for i, s := range b.shards {
		g.Events += s.events
		g.Fed = g.Fed && s.leased
		if s.owner != "" {
			g.Owners = append(g.Owners, s.owner)
		}
		if s.leased {
			g.PerSecond += s.perSecond
			if i == 0 || s.closing < closing {
				closing = s.closing
			}
		}
		if s.Tries > 0 && g.Failure == nil {
			f := s.Failure
			g.Failure = &f
		}
	}
	switch {
	case g.Position >= head || head == 0:
		g.ETA = 0
	case closing > 0 && g.Position != beginning:
		g.ETA = time.Duration(float64(head-g.Position) / closing * float64(time.Second))
	}
	g.Behind = g.ETA != 0
	g.ETASeconds = g.ETA.Seconds()
	if g.ETA < 0 {
		g.ETASeconds = -1
	}
	if g.Position == beginning {
		g.Position = 0
	}
	return g
}

// age is how old the first event behind a position is, whether or not it is one that the
// projection handles.
func age(ctx context.Context, db bun.IDB, position int64) (seconds float64, err error) {
	d := db.Dialect()
	err = db.NewRaw("SELECT coalesce(max("+dbtime.Seconds(d, "f.occurred_at", "(SELECT "+dbtime.Now(d)+")")+"), 0) FROM"+
		" (SELECT * FROM (SELECT position, occurred_at FROM history WHERE position > ?0 ORDER BY position LIMIT 1) AS h"+
		" UNION ALL SELECT * FROM (SELECT position, occurred_at FROM events WHERE position > ?0 ORDER BY position LIMIT 1) AS e) AS f", position).Scan(ctx, &seconds)
	if err != nil {
		return 0, fmt.Errorf("projection: how old what is behind position %d is: %w", position, err)
	}
	return max(seconds, 0), nil
}

// act runs an operator's change of a projection and puts it on record.
func act(ctx context.Context, p uow.Provider, action, actor string, asked any, f func(ctx context.Context, tx bun.Tx) error) error {
	record := operate.Record{Table: "outbox_actions", Count: "rows", Actor: actor, Action: "projections-" + action, Asked: asked}
	if err := record.Check("projections: "+action, false); err != nil {
		return err
	}
	err := inTx(ctx, p, func(ctx context.Context, tx bun.Tx) error {
		if err := f(ctx, tx); err != nil {
			return err
		}
		_, err := record.Add(ctx, tx, 0, 0, 1)
		return err
	})
	if locked(err) {
		err = fmt.Errorf("another transaction has used its tables for longer than %v; run it again: %w", lockTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("projections: %s: %w", action, err)
	}
	return nil
}

// Asked is what was asked for, for the record.
type asked struct {
	Projection string `json:"projection"`
	Build      int    `json:"build,omitempty"`
	Position   int64  `json:"position,omitempty"`
	Stale      bool   `json:"stale,omitempty"`
}

// Rebuild asks for a new build of the live version, which the processes that run it
// make, and change over to.
func Rebuild(ctx context.Context, p uow.Provider, name, actor string) (number int, err error) {
	err = act(ctx, p, "rebuild", actor, asked{Projection: name}, func(ctx context.Context, tx bun.Tx) error {
		builds, err := lockBuilds(ctx, tx, name)
		if err != nil {
			return err
		}
		live := liveOf(builds)
		if live == nil {
			return fmt.Errorf("%q: %w", name, errNone)
		}
		for _, b := range builds {
			if b.version == live.version && b.build > live.build && b.status != Old {
				return fmt.Errorf("build %d of %s is on its way: wait until it is in use, or retire it", b.build, name)
			}
		}
		number = builds[len(builds)-1].build + 1
		_, err = tx.ExecContext(ctx, "INSERT INTO projections (projection, build, version, context, status) VALUES (?, ?, ?, ?, 'building')", name, number, live.version, live.context)
		return err
	})
	return number, err
}

// Switch makes a build the live one: a ready one, or an old one that has been kept up
// to date. stale lets one be live that is behind the one before.
func Switch(ctx context.Context, p uow.Provider, name string, number int, stale bool, actor string) error {
	return act(ctx, p, "switch", actor, asked{Projection: name, Build: number, Stale: stale}, func(ctx context.Context, tx bun.Tx) error {
		err := changeIn(ctx, tx, name, number, stale, func(live, to *build) error {
			if live.build == to.build {
				return fmt.Errorf("build %d of %s is in use already", number, name)
			}
			return nil
		})
		if errors.Is(err, errGone) {
			return fmt.Errorf("%s has no build %d with tables; `waybill projections list` has those that there are", name, number)
		}
		return err
	})
}

// SkipEvent lets a projection that is stuck continue behind the event that it stands
// at, whose effect is missing in its tables from then on. The lease is taken away, as who
// has it may be about to try the event once more.
func SkipEvent(ctx context.Context, p uow.Provider, name string, number int, position int64, actor string) error {
	return act(ctx, p, "skip", actor, asked{Projection: name, Build: number, Position: position}, func(ctx context.Context, tx bun.Tx) error {
		past := "'-infinity'"
		if sqlite(tx) {
			past = "''"
		}
		res, err := tx.ExecContext(ctx, "UPDATE projection_positions SET position = failed_position, fence = fence + 1, locked_until = "+past+
			", at_head = FALSE, tries = 0, failed_at = NULL, failed_position = NULL, failed_event = NULL, next_at = NULL, error = NULL"+
			" WHERE projection = ? AND build = ? AND tries > 0 AND failed_position = ?", name, number, position)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("build %d of %s hasn't stopped at position %d; `waybill projections list` says where it has", number, name, position))
		}
		return nil
	})
}

// Retire removes a projection, or one build that isn't live (0: all of it): tables,
// view, positions. It is refused while a process feeds it.
func Retire(ctx context.Context, p uow.Provider, name string, number int, actor string) error {
	return act(ctx, p, "retire", actor, asked{Projection: name, Build: number}, func(ctx context.Context, tx bun.Tx) error {
		builds, err := lockBuilds(ctx, tx, name)
		if err != nil {
			return err
		}
		if len(builds) == 0 {
			return fmt.Errorf("%q: %w", name, errNone)
		}
		found := false
		for _, b := range builds {
			if number != 0 && b.build != number {
				continue
			}
			found = true
			switch {
			case number != 0 && b.status == Live:
				return fmt.Errorf("build %d of %s is in use: switch to another one first, or retire all of it", number, name)
			case b.fed():
				return fmt.Errorf("build %d of %s is fed by %s: deploy programs without it first, then retire it", b.build, name, progress(b, 0).Owners)
			}
			if number == 0 {
				if err := dropViews(ctx, tx, b); err != nil {
					return err
				}
			}
		}
		if !found {
			return fmt.Errorf("%s has no build %d; `waybill projections list` has those that there are", name, number)
		}
		for _, b := range builds {
			if number == 0 || b.build == number {
				if err := drop(ctx, tx, b); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Build builds the tables of a new version until they have caught up, without
// changing over, for a job that runs before a deployment. It may run while programs
// of the old version do, and be ended and run again. progress may be nil; it is called
// once per second.
func Build(ctx context.Context, p Projection, progress func(Progress)) error {
	if p.Units == nil {
		return fmt.Errorf("projection %s: Build needs its Units: those of its context", p.Name)
	}
	p.Previous = nil
	ps, err := New(p.Units, []Projection{p}, slog.Default())
	if err != nil {
		return err
	}
	r := ps.Runner(ps.all[0].current().Provider, nil)
	r.building = true
	if err := r.Start(ctx); err != nil {
		return err
	}
	err = r.await(ctx, ps.all[0].current(), progress)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTime)
	defer cancel()
	return errors.Join(err, r.Stop(stop))
}

// await waits until a build of a program has caught up.
func (r *Runner) await(ctx context.Context, g *program, tell func(Progress)) error {
	for {
		builds, err := load(ctx, r.provider.Reader(), []string{g.Name})
		if err != nil && ctx.Err() == nil {
			r.outage.Note(ctx, looking, err)
		}
		if b := newest(builds, g.Version); b != nil {
			if tell != nil {
				head, err := historydb.Head(ctx, r.provider.Reader())
				if err == nil {
					tell(progress(b, head))
				}
			}
			if b.ready.Valid {
				return nil
			}
		}
		if !sleep(ctx, cmp.Or(r.wait.look, time.Second)) {
			return fmt.Errorf("projection %s: version %d has not caught up yet; run it again to continue: %w", g.Name, g.Version, context.Cause(ctx))
		}
	}
}

// importer is the owner of leases that HoldAtBeginning has taken.
const importer = "waybill history import"

// HoldAtBeginning keeps projections that have read nothing yet from beginning, for a time or
// until [LetBegin], so that they see what tx and those that follow put at the beginning of the
// history; it fails if one has read on. The leases are taken away: who has one may have read
// a page that is without it, and its commit changes nothing then.
func HoldAtBeginning(ctx context.Context, tx bun.Tx, length time.Duration) error {
	if !sqlite(tx) {
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM projection_positions ORDER BY projection, build, shard FOR UPDATE"); err != nil {
			return fmt.Errorf("projection: hold all at the beginning: %w", err)
		}
	}
	// What is read has a later snapshot than the lock, see lockBuilds.
	builds, err := load(ctx, tx, nil)
	if err != nil {
		return err
	}
	for _, b := range builds {
		if slices.ContainsFunc(b.shards, func(s shard) bool { return s.position != beginning }) {
			return fmt.Errorf("projection %s, build %d, has read the history beyond its beginning, and would never see what comes before: deploy programs without the projection, run `waybill projections retire %s`, import, and deploy them with it again, which rebuilds it",
				b.projection, b.build, b.projection)
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE projection_positions SET fence = fence + 1, owner = ?, locked_until = "+dbtime.In(tx.Dialect(), length), importer); err != nil {
		return fmt.Errorf("projection: hold all at the beginning: %w", err)
	}
	return nil
}

// LetBegin lets projections begin that were held.
func LetBegin(ctx context.Context, db bun.IDB) error {
	past := "'-infinity'"
	if sqlite(db) {
		past = "''"
	}
	if _, err := db.ExecContext(ctx, "UPDATE projection_positions SET locked_until = "+past+" WHERE owner = ?", importer); err != nil {
		return fmt.Errorf("projection: let all begin: %w", err)
	}
	return nil
}
