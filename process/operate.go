package process

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

// Purge removes processes that ended long enough ago, and what is left of those for which
// messages waited that are discarded: at most limit rows. It says how many. An engine
// calls it.
func Purge(ctx context.Context, db *bun.DB, limit int) (int64, error) {
	now := bun.Safe(dbtime.Now(db.Dialect()))
	done, err := db.NewRaw("DELETE FROM processes WHERE (process, id) IN (SELECT p.process, p.id FROM processes AS p WHERE p.status <> 'running' AND p.forget_at < ?"+
		" AND NOT EXISTS (SELECT 1 FROM dead_letters AS d WHERE d.subscription = p.process AND d.key_id = p.id AND d.status = 'early') ORDER BY p.forget_at LIMIT ?)"+
		" AND status <> 'running' AND forget_at < ?", // A row that a message has made younger meanwhile stays.
		now, limit, now).Exec(ctx)
	if err != nil {
		return 0, fmt.Errorf("process: remove those that have ended: %w", err)
	}
	return done.RowsAffected()
}

// Instance is what is known of a process besides its state.
type Instance struct {
	Process string // "lending"
	ID      string
	// Version is how many messages it has heard.
	Version int64
	// Status is "running", "ended", or "awaited": messages came before the event that
	// begins it, and wait.
	Status      string
	Began, Last time.Time
	Heard       []Heard              // Its last messages, at most 20, the first one first.
	Timers      map[string]time.Time // Those that wait.
}

// Heard is a message that a process has heard.
type Heard struct {
	At   time.Time `json:"at"`
	Type string    `json:"type"`
	ID   string    `json:"id"`
}

// NotFoundError is a process of which nothing is known: it hasn't begun, or ended so long
// ago that it was forgotten.
type NotFoundError struct{ Process, ID string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("process: there is no %s %q", e.Process, e.ID)
}

// Get returns a process, for reading: what is done to its state has no effect. If there is
// none, the error is a [*NotFoundError]. The state of one that is awaited is empty.
func Get[P domain.ProcessState](ctx context.Context, units *uow.Manager, id string) (P, Instance, error) {
	var none P
	t, err := domain.ProcessTypeFor[P](units.Domain())
	if err != nil {
		return none, Instance{}, err
	}
	p := &process{typ: t, name: t.Context + "." + t.Name, units: units}
	db := p.provider().Reader()
	i := Instance{Process: t.Name, ID: id, Timers: map[string]time.Time{}}
	var r row
	var told []byte
	var began, last dbtime.Time
	switch err := db.NewRaw("SELECT version, status, COALESCE(state, 'null'), state_version, heard, began_at, last_at FROM processes WHERE process = ? AND id = ?", p.name, id).
		Scan(ctx, &r.version, &r.status, &r.state, &r.form, &told, &began, &last); {
	case errors.Is(err, sql.ErrNoRows):
		return none, i, &NotFoundError{Process: t.Name, ID: id}
	case err != nil:
		return none, i, fmt.Errorf("process: read %s %q: %w", t.Name, id, err)
	}
	i.Version, i.Status, i.Began, i.Last = r.version, r.status, began.Time, last.Time
	if err := json.Unmarshal(told, &i.Heard); err != nil {
		return none, i, fmt.Errorf("process: what %s %q has heard is not what was stored: %w", t.Name, id, err)
	}
	err = dbrows.Each(ctx, db, "SELECT name, available_at FROM timers WHERE owner = ? AND status = 'waiting'", func(scan func(...any) error) error {
		var name string
		var at dbtime.Time
		err := scan(&name, &at)
		i.Timers[name] = at.Time
		return err
	}, p.owner(id))
	if err != nil {
		return none, i, fmt.Errorf("process: read the timers of %s %q: %w", t.Name, id, err)
	}
	s, err := p.decode(id, last.Time, r)
	if err != nil {
		return none, i, err
	}
	return s.(P), i, nil
}
