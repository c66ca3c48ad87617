package projection

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
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
	// Fed says that a process feeds all of it, or comes back to the event that it has failed at;
	// Owners are those that feed it, or did last.
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
		g.Fed = g.Fed && s.fed
		if s.owner != "" {
			g.Owners = append(g.Owners, s.owner)
		}
		if s.fed {
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
