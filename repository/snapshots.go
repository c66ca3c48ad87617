package repository

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/uow"
)

// Snapshots stores an event-sourced aggregate's exported fields with every n-th version,
// in the transaction of the save, so that to load it takes the events since. The newest
// two are kept. They are a shortcut and nothing else: all may be deleted at any time, one
// of another [domain.StateVersion] is passed over, as is one that lacks a field or has
// another one, and none is ever upcast. So raise domain.StateVersion whenever what the fields
// mean changes, or what Apply makes of them, or a field comes that may be left out.
//
// For [EventSourced]. It panics if the aggregate has fields that JSON would lose, as
// [New] does.
func Snapshots(every int) Option { return optionFunc(func(o *options) { o.snapshots = &every }) }

// checkSnapshots refuses what snapshots can't be made of, or not so often.
func checkSnapshots(o options, t reflect.Type, constructor string) error {
	if o.snapshots == nil {
		return nil
	}
	if constructor != "EventSourced" {
		return errors.New("repository.Snapshots is for aggregates that are kept as their events: take it out")
	}
	if *o.snapshots < 1 {
		return fmt.Errorf("repository.Snapshots(%d): say with how many versions one is made, 100 for instance", *o.snapshots)
	}
	var errs []error
	for _, lost := range jsonfields.Lost(t, reflect.TypeFor[domain.Root](), "") {
		errs = append(errs, fmt.Errorf("repository.Snapshots: %s", lost))
	}
	return errors.Join(errs...)
}

const (
	// ofSnapshot stands where an event's type does.
	ofSnapshot = "waybill.snapshot"

	insertSnapshot = "INSERT INTO snapshots (category, id, version, state_version, state) VALUES (?, ?, ?, ?, ?)" +
		" ON CONFLICT (category, id, version) DO UPDATE SET state_version = excluded.state_version, state = excluded.state"
	deleteSnapshots = "DELETE FROM snapshots WHERE category = ? AND id = ? AND version < ?"

	// selectSince is one aggregate's latest snapshot up to a version, and the events since.
	latestSnapshot = "(SELECT coalesce(max(version), 0) FROM snapshots WHERE category = ?0 AND id = ?1 AND state_version = ?2 AND version <= ?3)"
	selectSince    = "SELECT id, version, n, type, data FROM events WHERE category = ?0 AND id = ?1 AND type <> '" + markRefused + "' AND version <= ?3 AND version > " + latestSnapshot +
		" UNION ALL SELECT id, version, 0, '" + ofSnapshot + "', state FROM snapshots WHERE category = ?0 AND id = ?1 AND version = " + latestSnapshot
	// together is how many aggregates are loaded by one query of that kind.
	together = 50
)

// snapshot are the statements that store one, if its turn has come.
func (e events[A]) snapshot(c uow.Change) ([]uow.Statement, error) {
	every := int64(e.every)
	if every == 0 || c.Removed || c.Version%every != 0 {
		return nil, nil
	}
	doc, form, err := e.typ.State.Encode(c.Aggregate, 0, nil)
	if err != nil {
		return nil, fmt.Errorf("its snapshot can't be made: %w", err)
	}
	return []uow.Statement{
		{Query: bun.SafeQuery(insertSnapshot, c.Type.Category, c.Aggregate.ID(), c.Version, form, string(doc)), Rows: -1},
		{Query: bun.SafeQuery(deleteSnapshots, c.Type.Category, c.Aggregate.ID(), c.Version-every), Rows: -1},
	}, nil
}

// errSnapshot is a snapshot that can't be read. It is done without then.
var errSnapshot = errors.New("repository: a snapshot can't be read")

// loadUpTo loads aggregates as of a version, each as far as it has come by then.
func (e events[A]) loadUpTo(ctx context.Context, db bun.IDB, ids []string, upTo int64) (all []stored[A], err error) {
	if e.every == 0 {
		return e.collect(db.QueryContext(ctx, selectEvents, e.typ.Category, bun.List(ids), upTo))
	}
	for some := range slices.Chunk(ids, together) {
		gen := schema.NewQueryGen(db.Dialect())
		var each []string
		for _, id := range some {
			each = append(each, gen.FormatQuery(selectSince, e.typ.Category, id, e.typ.State.Version, upTo))
		}
		// As an argument, as bun would take a question mark in an identity for one.
		query := bun.Safe("SELECT id, version, type, data FROM (" + strings.Join(each, " UNION ALL ") + ") AS t ORDER BY id, version, n")
		found, err := e.collect(db.QueryContext(ctx, "?", query))
		if errors.Is(err, errSnapshot) {
			e.every = 0
			return e.loadUpTo(ctx, db, ids, upTo)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (e events[A]) load(ctx context.Context, db bun.IDB, ids []string) ([]stored[A], error) {
	return e.loadUpTo(ctx, db, ids, math.MaxInt64)
}

// collect makes aggregates of what has happened to them, which rows have in order.
func (e events[A]) collect(rows *sql.Rows, err error) (all []stored[A], _ error) {
	if err != nil {
		return nil, e.readError(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, name string
		var version int64
		var data []byte
		if err := rows.Scan(&id, &version, &name, &data); err != nil {
			return nil, e.readError(err)
		}
		if len(all) == 0 || all[len(all)-1].id != id {
			all = append(all, stored[A]{id: id, aggregate: e.empty()})
		}
		if err := e.apply(&all[len(all)-1], version, name, data); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, e.readError(err)
	}
	for i, s := range all {
		if s.removed {
			continue
		}
		if all[i], err = e.restored(s.aggregate, s.id, s.version); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (e events[A]) apply(s *stored[A], version int64, name string, data []byte) error {
	s.version = version
	switch name {
	case markSaved:
	case markRemoved:
		s.removed, s.aggregate = true, e.empty()
	case ofSnapshot:
		state, _, err := e.typ.State.Decode(s.id, data, e.typ.State.Version)
		if err != nil {
			return errors.Join(errSnapshot, err)
		}
		// Its type may have got a field under the same StateVersion, of which only later
		// events would be counted.
		if field := jsonfields.Missing(reflect.TypeFor[A](), reflect.TypeFor[domain.Root](), data); field != "" {
			return fmt.Errorf("%w: it has no %s", errSnapshot, field)
		}
		s.aggregate = state.(A)
	default:
		event, err := e.domain.Decode(name, data)
		if err != nil {
			return fmt.Errorf("repository: %s in version %d of %s %s can't be read: %w", name, version, e.typ.Category, s.id, err)
		}
		s.removed = false
		s.aggregate.Apply(event)
	}
	return nil
}
