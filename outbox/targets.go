package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"
)

// targetsPrefix stands before the context's name in outbox_settings.
const targetsPrefix = "targets:"

// Targets are the brokers that a context's rows are for. Every process that
// writes a context into a database must have the same ones: a broker that one of
// them doesn't know never gets its events, and nothing would show it. So they are
// written into the database when a context comes to it, by a migration or by an
// engine, and whoever has others is refused from then on.
type Targets struct {
	Broker   string   `json:"broker"`   // The context's own.
	External []string `json:"external"` // The partners', in any order.
}

// TargetsOf are a context's targets, as uow.Config has them.
func TargetsOf(own string, external []Target) Targets {
	t := Targets{Broker: own}
	for _, e := range external {
		t.External = append(t.External, e.Broker)
	}
	return t
}

// sorted is t as it is stored.
func (t Targets) sorted() Targets {
	t.External = append([]string{}, t.External...)
	slices.Sort(t.External)
	return t
}

// Equal says whether t and o are the same brokers.
func (t Targets) Equal(o Targets) bool {
	return t.Broker == o.Broker && slices.Equal(t.sorted().External, o.sorted().External)
}

// String is the form of `waybill migrate --set-targets`: "default,partner", the
// context's own first.
func (t Targets) String() string {
	return strings.Join(append([]string{t.Broker}, t.sorted().External...), ",")
}

func (t Targets) check() error {
	all := append([]string{t.Broker}, t.External...)
	slices.Sort(all)
	if slices.Contains(all, "") || len(slices.Compact(slices.Clone(all))) < len(all) {
		return fmt.Errorf("outbox: targets %q: name every broker, and none twice", t)
	}
	return nil
}

// ReadTargets are the targets that a database has, by context.
func ReadTargets(ctx context.Context, db bun.IDB) (map[string]Targets, error) {
	var rows []struct{ Name, Value string }
	if err := db.NewRaw("SELECT name, value FROM outbox_settings WHERE name LIKE '"+targetsPrefix+"%'").Scan(ctx, &rows); err != nil {
		// Most likely the table isn't there: say what to do about it.
		return nil, cmp.Or(Migrations().Check(ctx, db), fmt.Errorf("outbox: read targets: %w", err))
	}
	all := map[string]Targets{}
	for _, r := range rows {
		name := strings.TrimPrefix(r.Name, targetsPrefix)
		var t Targets
		if err := json.Unmarshal([]byte(r.Value), &t); err != nil {
			return nil, fmt.Errorf("outbox: outbox_settings says that the targets of context %s are %q; write them anew with `waybill migrate --set-targets %s=<own broker>,<external broker>`: %w", name, r.Value, name, err)
		}
		all[name] = t
	}
	return all, nil
}

// CheckTargets returns a [*TargetsError] unless the database has t for a context.
func CheckTargets(ctx context.Context, db bun.IDB, name string, t Targets) error {
	all, err := ReadTargets(ctx, db)
	if err != nil {
		return err
	}
	have, ok := all[name]
	switch {
	case !ok:
		return &TargetsError{Context: name, Want: t}
	case !have.Equal(t):
		return &TargetsError{Context: name, Have: &have, Want: t}
	}
	return nil
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
// that run have made sure of theirs already and don't look again. Events that were
// raised before don't go to a broker that is added, and rows for one that is taken
// out are published by nobody: let them be published before.
func SetTargets(ctx context.Context, db bun.IDB, name string, t Targets) error {
	return writeTargets(ctx, db, name, t, "(name) DO UPDATE SET value = excluded.value")
}

func writeTargets(ctx context.Context, db bun.IDB, name string, t Targets, conflict string) error {
	if err := t.check(); err != nil {
		return err
	}
	value, err := json.Marshal(t.sorted())
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES (?, ?) ON CONFLICT "+conflict, targetsPrefix+name, string(value)); err != nil {
		return fmt.Errorf("outbox: write targets of context %s: %w", name, err)
	}
	return nil
}
