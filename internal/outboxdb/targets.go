package outboxdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// targetsPrefix stands before the context's name in outbox_settings.
	targetsPrefix = "targets:"

	// flipPatience is for how long who changes targets waits for transactions that
	// write, while all that come after wait behind it. An autovacuum gives way after
	// one second, PostgreSQL's deadlock_timeout.
	flipPatience = 2 * time.Second
)

// ReadTargets are the targets that a database has, by context. It is for people: see
// [FindTargets].
func ReadTargets(ctx context.Context, db bun.IDB) (map[string]outbox.Targets, error) {
	all := map[string]outbox.Targets{}
	err := dbrows.Each(ctx, db, text("both", "settings_like"), func(scan func(...any) error) error {
		var name, value string
		if err := scan(&name, &value); err != nil {
			return err
		}
		name = strings.TrimPrefix(name, targetsPrefix)
		var err error
		all[name], err = parseTargets(name, value)
		return err
	}, len(targetsPrefix), targetsPrefix)
	if err != nil {
		return nil, explain(ctx, db, fmt.Errorf("outbox: read targets: %w", err))
	}
	return all, nil
}

// FindTargets are the targets that a database has for one context. Others' are not
// read: a unit of work costs the same however many there are, and doesn't fail for one
// that is malformed.
func FindTargets(ctx context.Context, db bun.IDB, name string) (t outbox.Targets, found bool, err error) {
	value, found, err := readSetting(ctx, db, targetsPrefix+name)
	switch {
	case err != nil:
		return outbox.Targets{}, false, explain(ctx, db, fmt.Errorf("outbox: read targets of context %s: %w", name, err))
	case !found:
		return outbox.Targets{}, false, nil
	}
	t, err = parseTargets(name, value)
	return t, err == nil, err
}

func parseTargets(name, value string) (t outbox.Targets, err error) {
	if err := json.Unmarshal([]byte(value), &t); err != nil {
		return outbox.Targets{}, fmt.Errorf("outbox: outbox_settings says that the targets of context %s are %q; write them anew with `waybill migrate --set-targets %s=<own broker>,<external broker>`: %w", name, value, name, err)
	}
	return t, nil
}

// CheckTargets returns an [*outbox.TargetsError] unless the database has t for a
// context.
func CheckTargets(ctx context.Context, db bun.IDB, name string, t outbox.Targets) error {
	_, err := ConfirmTargets(ctx, db, name, t)
	return err
}

// ConfirmTargets is CheckTargets that also returns what the database has: which
// targets are joining.
func ConfirmTargets(ctx context.Context, db bun.IDB, name string, t outbox.Targets) (outbox.Targets, error) {
	have, found, err := FindTargets(ctx, db, name)
	switch {
	case err != nil:
		return outbox.Targets{}, err
	case !found:
		return outbox.Targets{}, &outbox.TargetsError{Context: name, Want: t}
	case !have.Equal(t):
		return outbox.Targets{}, &outbox.TargetsError{Context: name, Have: &have, Want: t}
	}
	return have, nil
}

// HoldTargets is ConfirmTargets in a transaction that is about to write rows:
// what it returns stays true until the transaction ends. A transaction that is
// not READ COMMITTED may fail because of it, and succeed when it is run again.
func HoldTargets(ctx context.Context, tx bun.IDB, name string, t outbox.Targets) (outbox.Targets, error) {
	if tx.Dialect().Name() == dialect.PG {
		// Who changes targets locks out all writers. Every insert takes this lock;
		// here it is taken before the targets are read.
		if _, err := tx.ExecContext(ctx, text("postgres", "lock_writing")); err != nil {
			return outbox.Targets{}, fmt.Errorf("outbox: lock for writing: %w", err)
		}
		// A transaction that isn't READ COMMITTED sees what was true before it had
		// the lock. To lock a row that has changed since is an error.
		if _, err := tx.ExecContext(ctx, text("postgres", "lock_targets"), targetsPrefix+name); err != nil {
			return outbox.Targets{}, fmt.Errorf("outbox: lock targets: %w", err)
		}
	}
	return ConfirmTargets(ctx, tx, name, t)
}

// InitTargets writes the targets of a context that is new to the database. If it
// has others for it already, that is an [*outbox.TargetsError], and they stay.
func InitTargets(ctx context.Context, db bun.IDB, name string, t outbox.Targets) error {
	err := CheckTargets(ctx, db, name, t)
	if missing, ok := errors.AsType[*outbox.TargetsError](err); ok && missing.Have == nil {
		if err = writeTargets(ctx, db, name, t, "setting_init"); err == nil {
			err = CheckTargets(ctx, db, name, t) // another process may have been faster
		}
	}
	if err != nil {
		return err
	}
	return makeLanes(ctx, db, t)
}

// makeLanes makes those lanes of targets that are missing. A unit of work would, too,
// but keep all others of the target waiting until it has committed.
func makeLanes(ctx context.Context, db bun.IDB, t outbox.Targets) error {
	for _, target := range append([]string{t.Broker}, t.External...) {
		var known bool
		err := db.QueryRowContext(ctx, text("both", "lane_known"), target).Scan(&known)
		if err == nil && !known {
			_, err = db.ExecContext(ctx, text("both", "lane_make"), target)
		}
		if err != nil {
			return fmt.Errorf("outbox: make the lane of %s: %w", target, err)
		}
	}
	return nil
}

// SetTargets changes the targets of a context. Stop its processes first: those
// that run are refused within seconds, and what they write until then misses a
// broker that is added. Rows for one that is taken out would be published by nobody:
// as long as there are any, it is refused. also is done in the same transaction, where
// the context had other targets; nothing else is written meanwhile. A change is on record,
// as actor's.
//
// A broker that is added gets the events from then on, or, if t.Joining names it,
// those before as well: see [Store.Backfill]. One that is joining already stays
// so; to let it go without the history, take it out and add it again.
func SetTargets(ctx context.Context, db *bun.DB, name string, t outbox.Targets, actor string, also ...func(ctx context.Context, tx bun.Tx, was outbox.Targets) error) error {
	if err := t.Check(); err != nil {
		return err
	}
	record := actionRecord(actor, "targets-set", nil)
	if err := record.Check("outbox: set the targets of context "+name, false); err != nil {
		return err
	}
	s := New(db, db)
	err := dbtx.Run(ctx, db, func(tx bun.Tx) error {
		if err := s.lockOut(ctx, tx); err != nil {
			return err
		}
		var have outbox.Targets
		value, found, err := readSetting(ctx, tx, targetsPrefix+name)
		if err != nil {
			return err
		}
		if found && json.Unmarshal([]byte(value), &have) != nil {
			have = outbox.Targets{} // it is written anew
		}
		for _, j := range t.Joining {
			if slices.Contains(have.External, j) && !slices.Contains(have.Joining, j) {
				return fmt.Errorf("outbox: %s can't join the targets of context %s, it is one already: remove it and publish its rows before it joins again, or leave it", j, name)
			}
		}
		if err := s.leavesNone(ctx, tx, name, have, t); err != nil {
			return err
		}
		if err := changeOwn(ctx, tx, name, have, t); err != nil {
			return err
		}
		for _, do := range also {
			if err := do(ctx, tx, have); err != nil {
				return err
			}
		}
		now := t.Sorted()
		now.History = have.History
		for _, j := range have.Joining {
			if slices.Contains(t.External, j) {
				now.Joining = append(now.Joining, j)
			}
		}
		if err := setCursors(ctx, tx, name, now.Joining); err != nil {
			return err
		}
		if err := writeTargets(ctx, tx, name, now, "setting_write"); err != nil {
			return err
		}
		if !have.Equal(now) {
			record.Asked = targetsSet{name, have, now}
			if _, err := record.Add(ctx, tx, 0, 0, 1); err != nil {
				return err
			}
		}
		return makeLanes(ctx, tx, now)
	})
	if lockTimeout(err) {
		return fmt.Errorf("outbox: for %v a transaction has been writing to the outbox: stop the processes of context %s, and try again: %w", flipPatience, name, err)
	}
	return err
}

// changeOwn notes up to where the context had another own broker, if it gets a new one: a
// back-fill copies what that one got, too. One that runs by now knows of the old one only.
func changeOwn(ctx context.Context, tx bun.Tx, name string, have, t outbox.Targets) error {
	if have.Broker == "" || have.Broker == t.Broker {
		return nil
	}
	for _, j := range have.Joining {
		if slices.Contains(t.External, j) {
			return fmt.Errorf("outbox: context %s can't have %s as its own broker instead of %s while %s is joining, which would miss events: run `waybill outbox backfill %s` first, which needs no broker, or take it out and add it again afterwards", name, t.Broker, have.Broker, j, j)
		}
	}
	return writeOwn(ctx, tx, name, have.Broker)
}

// targetsSet is what the record says of a change.
type targetsSet struct {
	Context string         `json:"context"`
	From    outbox.Targets `json:"from"`
	To      outbox.Targets `json:"to"`
}

// leavesNone refuses targets without one that the context has now, and for which there
// are rows, unless another context has it too: only engines of a context that sends to a
// broker publish for it.
func (s *Store) leavesNone(ctx context.Context, tx bun.Tx, name string, have, t outbox.Targets) error {
	all, err := ReadTargets(ctx, tx)
	if err != nil {
		return nil //nolint:nilerr // what can't be read is about to be written anew
	}
	all[name] = t
	for _, target := range append([]string{have.Broker}, have.External...) {
		if target == "" || someSend(all, target) {
			continue
		}
		var waits bool
		err := tx.QueryRowContext(ctx, text("both", "lane_waits"), target).Scan(&waits)
		switch {
		case err != nil:
			return fmt.Errorf("outbox: look for rows for %s: %w", target, err)
		case waits:
			return fmt.Errorf("outbox: rows for broker %s wait, and nobody would publish them any more: let the engines of context %s publish them (`waybill outbox stats`), or give them up"+
				" (`waybill outbox abandon --target %s`, and `waybill outbox skip --held --target %s` for those that are held), and try again", target, name, target, target)
		}
	}
	return nil
}

func someSend(contexts map[string]outbox.Targets, target string) bool {
	for _, t := range contexts {
		if t.Broker == target || slices.Contains(t.External, target) {
			return true
		}
	}
	return false
}

// lockOut keeps everybody from writing until the transaction ends. SQLite has one
// writer.
func (s *Store) lockOut(ctx context.Context, tx bun.Tx) error {
	if s.sqlite() {
		return nil
	}
	_, err := tx.ExecContext(ctx, text("postgres", "lock_patience"), flipPatience.Milliseconds())
	if err == nil {
		_, err = tx.ExecContext(ctx, text("postgres", "lock_out"))
	}
	return err
}

// writeTargets writes them by one of the statements that write a setting.
func writeTargets(ctx context.Context, db bun.IDB, name string, t outbox.Targets, statement string) error {
	if err := t.Check(); err != nil {
		return err
	}
	value, err := json.Marshal(t.Sorted())
	if err == nil {
		_, err = db.ExecContext(ctx, text("both", statement), targetsPrefix+name, string(value))
	}
	if err != nil {
		return fmt.Errorf("outbox: write targets of context %s: %w", name, err)
	}
	return nil
}

func readSetting(ctx context.Context, db bun.IDB, name string) (value string, found bool, err error) {
	err = db.QueryRowContext(ctx, text("both", "setting_read"), name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return value, err == nil, err
}
