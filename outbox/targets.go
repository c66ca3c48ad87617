package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// targetsPrefix stands before the context's name in outbox_settings.
const targetsPrefix = "targets:"

// ReadTargets are the targets that a database has, by context. It is for people: see
// [FindTargets].
func ReadTargets(ctx context.Context, db bun.IDB) (map[string]Targets, error) {
	var rows []struct{ Name, Value string }
	if err := db.NewRaw("SELECT name, value FROM outbox_settings WHERE name LIKE '"+targetsPrefix+"%'").Scan(ctx, &rows); err != nil {
		return nil, explain(ctx, db, fmt.Errorf("outbox: read targets: %w", err))
	}
	all := map[string]Targets{}
	for _, r := range rows {
		name := strings.TrimPrefix(r.Name, targetsPrefix)
		t, err := parseTargets(name, r.Value)
		if err != nil {
			return nil, err
		}
		all[name] = t
	}
	return all, nil
}

// FindTargets are the targets that a database has for one context. Others' are not
// read: a unit of work costs the same however many there are, and doesn't fail for one
// that is malformed.
func FindTargets(ctx context.Context, db bun.IDB, name string) (t Targets, found bool, err error) {
	var value string
	switch err := db.NewRaw("SELECT value FROM outbox_settings WHERE name = ?", targetsPrefix+name).Scan(ctx, &value); {
	case errors.Is(err, sql.ErrNoRows):
		return Targets{}, false, nil
	case err != nil:
		return Targets{}, false, explain(ctx, db, fmt.Errorf("outbox: read targets of context %s: %w", name, err))
	}
	t, err = parseTargets(name, value)
	return t, err == nil, err
}

func parseTargets(name, value string) (t Targets, err error) {
	if err := json.Unmarshal([]byte(value), &t); err != nil {
		return Targets{}, fmt.Errorf("outbox: outbox_settings says that the targets of context %s are %q; write them anew with `waybill migrate --set-targets %s=<own broker>,<external broker>`: %w", name, value, name, err)
	}
	return t, nil
}

// CheckTargets returns a [*TargetsError] unless the database has t for a context.
func CheckTargets(ctx context.Context, db bun.IDB, name string, t Targets) error {
	_, err := ConfirmTargets(ctx, db, name, t)
	return err
}

// ConfirmTargets is CheckTargets that also returns what the database has: which
// targets are joining.
func ConfirmTargets(ctx context.Context, db bun.IDB, name string, t Targets) (Targets, error) {
	have, found, err := FindTargets(ctx, db, name)
	switch {
	case err != nil:
		return Targets{}, err
	case !found:
		return Targets{}, &TargetsError{Context: name, Want: t}
	case !have.Equal(t):
		return Targets{}, &TargetsError{Context: name, Have: &have, Want: t}
	}
	return have, nil
}

// HoldTargets is ConfirmTargets in a transaction that is about to write rows:
// what it returns stays true until the transaction ends. A transaction that is
// not READ COMMITTED may fail because of it, and succeed when it is run again.
func HoldTargets(ctx context.Context, tx bun.IDB, name string, t Targets) (Targets, error) {
	if tx.Dialect().Name() == dialect.PG {
		// Who changes targets locks out all writers. Every insert takes this lock;
		// here it is taken before the targets are read.
		if _, err := tx.ExecContext(ctx, "LOCK TABLE outbox IN ROW EXCLUSIVE MODE"); err != nil {
			return Targets{}, fmt.Errorf("outbox: lock for writing: %w", err)
		}
		// A transaction that isn't READ COMMITTED sees what was true before it had
		// the lock. To lock a row that has changed since is an error.
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM outbox_settings WHERE name = ? AND current_setting('transaction_isolation') <> 'read committed' FOR SHARE", targetsPrefix+name); err != nil {
			return Targets{}, fmt.Errorf("outbox: lock targets: %w", err)
		}
	}
	return ConfirmTargets(ctx, tx, name, t)
}

// InitTargets writes the targets of a context that is new to the database. If it
// has others for it already, that is a [*TargetsError], and they stay.
func InitTargets(ctx context.Context, db bun.IDB, name string, t Targets) error {
	err := CheckTargets(ctx, db, name, t)
	if missing, ok := errors.AsType[*TargetsError](err); !ok || missing.Have != nil {
		return err
	}
	if err := writeTargets(ctx, db, name, t, "DO NOTHING"); err != nil {
		return err
	}
	return CheckTargets(ctx, db, name, t) // another process may have been faster
}

// SetTargets changes the targets of a context. Stop its processes first: those
// that run are refused within seconds, and what they write until then misses a
// broker that is added. Rows for one that is taken out are published by nobody:
// let them be published before.
//
// A broker that is added gets the events from then on, or, if t.Joining names it,
// those before as well: see [Store.Backfill]. One that is joining already stays
// so; to let it go without the history, take it out and add it again.
func SetTargets(ctx context.Context, db *bun.DB, name string, t Targets) error {
	if err := t.Check(); err != nil {
		return err
	}
	s := NewStore(db, db)
	err := s.inTx(ctx, db, func(tx bun.Tx) error {
		if err := s.lockTable(ctx, tx, exclusive, flipPatience); err != nil {
			return err
		}
		var have Targets
		var value string
		switch err := tx.QueryRowContext(ctx, "SELECT value FROM outbox_settings WHERE name = ?", targetsPrefix+name).Scan(&value); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case json.Unmarshal([]byte(value), &have) != nil:
			have = Targets{} // it is written anew
		}
		for _, j := range t.Joining {
			if slices.Contains(have.External, j) && !slices.Contains(have.Joining, j) {
				return fmt.Errorf("outbox: %s can't join the targets of context %s, it is one already: take it out and publish what it has before it comes anew, or leave it", j, name)
			}
		}
		now := t.Sorted()
		for _, j := range have.Joining {
			if slices.Contains(t.External, j) {
				now.Joining = append(now.Joining, j)
			}
		}
		if err := s.setCursors(ctx, tx, name, now.Joining); err != nil {
			return err
		}
		return writeTargets(ctx, tx, name, now, overwrite)
	})
	if lockTimeout(err) {
		return fmt.Errorf("outbox: for %v a transaction has been writing to the outbox: stop the processes of context %s, and try again: %w", flipPatience, name, err)
	}
	return err
}

const overwrite = "(name) DO UPDATE SET value = excluded.value"

func writeTargets(ctx context.Context, db bun.IDB, name string, t Targets, conflict string) error {
	if err := t.Check(); err != nil {
		return err
	}
	value, err := json.Marshal(t.Sorted())
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES (?, ?) ON CONFLICT "+conflict, targetsPrefix+name, string(value)); err != nil {
		return fmt.Errorf("outbox: write targets of context %s: %w", name, err)
	}
	return nil
}
