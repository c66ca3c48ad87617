package repository

import (
	"context"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/uow"
)

// GetForUpdate is [Repository.Get] for an aggregate that many want to change: whoever
// comes second waits here until the first unit of work has ended, instead of doing its
// work in vain and once more. Others may Get it meanwhile, and a save of theirs waits,
// too, and then is a conflict.
//
// It costs the unit its single round trip. Units that lock several aggregates must do so
// in one order; where they don't, the database ends one of them, and Do runs it again.
// On PostgreSQL the row is locked. An event-sourced aggregate has no such row: only those
// who ask for it by GetForUpdate wait for each other. On SQLite units that write are
// alone anyway: this begins the transaction. Outside of a unit of work it fails with
// [uow.ErrNone].
func (r *Repository[A]) GetForUpdate(ctx context.Context, id string) (A, error) {
	var none A
	u, err := uow.From(ctx)
	if err != nil {
		return none, err
	}
	if checkID(id) != nil {
		return none, &NotFoundError{Type: r.typ.Name, ID: id}
	}
	// As a Do, it refuses the unit of another manager.
	err = r.read(ctx, func(ctx context.Context, u *uow.Unit) error {
		db, err := u.DB(ctx, r.store.Provider())
		if err != nil {
			return err
		}
		if err := r.store.lock(ctx, db, id); err != nil {
			return err
		}
		// What was committed while the lock was waited for is seen by the next statement only.
		found, err := r.store.load(ctx, db, []string{id})
		if err != nil {
			return err
		}
		for _, s := range found {
			// The unit may have loaded it before, and decided by what it saw.
			if base, ok := u.Base(r.typ.Category, id); ok && base != s.version {
				return &uow.ConflictError{Type: r.typ.Name, ID: id, Expected: base}
			}
			if _, _, err := r.enter(u, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return none, err
	}
	a, ok := u.Identity(r.typ.Category, id)
	if !ok {
		return none, &NotFoundError{Type: r.typ.Name, ID: id}
	}
	return a.(A), nil
}

// waits says whether others can write beside a transaction.
func waits(db bun.IDB) bool { return db.Dialect().Name() == dialect.PG }

// forUpdate lets others refer to the row by foreign keys.
const forUpdate = "NO KEY UPDATE"

func (d documents[A]) lock(ctx context.Context, db bun.IDB, id string) error {
	return d.lockBy(ctx, db, "SELECT 1 FROM documents WHERE category = ? AND id = ? FOR "+forUpdate, id)
}

func (e events[A]) lock(ctx context.Context, db bun.IDB, id string) error {
	return e.lockBy(ctx, db, "SELECT 1 FROM events WHERE category = ? AND id = ? AND version = 1 AND n = 1 FOR "+forUpdate, id)
}

func (k kept[A]) lockBy(ctx context.Context, db bun.IDB, query, id string) error {
	if !waits(db) {
		return nil
	}
	if _, err := db.ExecContext(ctx, query, k.typ.Category, id); err != nil {
		return k.readError(err)
	}
	return nil
}

func (m mapped[A, R]) lock(ctx context.Context, db bun.IDB, id string) error {
	if !waits(db) {
		return nil
	}
	if _, err := db.NewSelect().Model((*R)(nil)).ColumnExpr("1").Where("?TableAlias.id = ?", id).For(forUpdate).Exec(ctx); err != nil {
		return m.readError(err)
	}
	return nil
}
