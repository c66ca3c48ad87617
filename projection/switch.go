package projection

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/uow"
)

const (
	// lockTimeout is how long a change of views waits for readers, who wait behind it.
	lockTimeout = 2 * time.Second
	// meet is for how long the live build waits for the new one to come up to it.
	meet      = time.Second
	meetEvery = 10 * time.Millisecond
)

// inTx runs f in a transaction that waits for no lock for long.
func inTx(ctx context.Context, p uow.Provider, f func(ctx context.Context, tx bun.Tx) error) error {
	return dbtx.Run(ctx, p.DB(), func(tx bun.Tx) error {
		if !sqlite(tx) {
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("SET LOCAL lock_timeout = '%dms'", lockTimeout.Milliseconds())); err != nil {
				return err
			}
		}
		return f(ctx, tx)
	})
}

// locked says that a transaction has waited too long for a lock.
func locked(err error) bool {
	return slices.Contains([]string{"55P03", "sqlite 5", "sqlite 6"}, dberr.CodeOf(err))
}

// behindError is a build that can't be live, as the view would go back.
type behindError struct {
	name       string
	build      int
	have, want int64
}

func (e *behindError) Error() string {
	return fmt.Sprintf("projection %s: build %d has come to position %d, and what is in use to %d: wait until it has caught up, or take it as it is with --stale", e.name, e.build, e.have, e.want)
}

// change makes another build the live one, if may says so. Unless it is to be as it is, it
// has to have come as far as the live one, whose position can't move meanwhile:
//
//   - Without the lock on the live one's positions, a batch of it could commit after the
//     look and before the view is replaced, and who has read it would see less afterwards.
//   - The rows of all builds are locked before it is read which is live: of two changes the
//     second would else go from a build that isn't live any more, and back.
func change(ctx context.Context, p uow.Provider, name string, number int, stale bool, may func(live, to *build) error) error {
	return inTx(ctx, p, func(ctx context.Context, tx bun.Tx) error { return changeIn(ctx, tx, name, number, stale, may) })
}

func changeIn(ctx context.Context, tx bun.Tx, name string, number int, stale bool, may func(live, to *build) error) error {
	builds, err := lockBuilds(ctx, tx, name)
	if err != nil {
		return err
	}
	live, i := liveOf(builds), slices.IndexFunc(builds, func(b *build) bool { return b.build == number })
	if i < 0 || builds[i].tables == nil || live == nil {
		return errGone
	}
	to := builds[i]
	if err := may(live, to); err != nil {
		return err
	}
	if !stale {
		if err := freeze(ctx, tx, live, to); err != nil {
			return err
		}
	}
	return show(ctx, tx, name, live, to)
}

// freeze locks the positions of the live build, and waits until the other one has come up
// to them. SQLite has one writer, so nobody moves, and nobody comes.
func freeze(ctx context.Context, tx bun.Tx, live, to *build) error {
	postgres := !sqlite(tx)
	query := "SELECT position FROM projection_positions WHERE projection = ? AND build = ? ORDER BY shard"
	if postgres {
		query += " FOR UPDATE"
	}
	highest := int64(beginning)
	err := dbrows.Each(ctx, tx, query, func(scan func(...any) error) error {
		var position int64
		err := scan(&position)
		highest = max(highest, position)
		return err
	}, live.projection, live.build)
	if err != nil {
		return err
	}
	for until := time.Now().Add(meet); ; {
		var lowest int64
		if err := tx.NewRaw("SELECT coalesce(min(position), ?) FROM projection_positions WHERE projection = ? AND build = ?", int64(beginning), to.projection, to.build).Scan(ctx, &lowest); err != nil {
			return err
		}
		if lowest >= highest {
			return nil
		}
		if !postgres || !to.fed() || time.Now().After(until) {
			return &behindError{name: to.projection, build: to.build, have: lowest, want: highest}
		}
		if !sleep(ctx, meetEvery) {
			return context.Cause(ctx) // It may come up yet: only who asked has gone.
		}
	}
}

// sleep waits, and says whether ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// show replaces the views by those of a build. Columns stay in the order that the views
// have, so that who has a right to read them keeps it; one that the build hasn't is NULL.
func show(ctx context.Context, tx bun.Tx, name string, live, to *build) error {
	for _, table := range slices.Sorted(maps.Keys(to.tables)) {
		if table == sqlText {
			continue
		}
		if err := showTable(ctx, tx, table, physical(table, to.build)); err != nil {
			return fmt.Errorf("projection %s: make the view %s show build %d: %w", name, table, to.build, err)
		}
	}
	d := tx.Dialect()
	if live != nil {
		if _, err := tx.ExecContext(ctx, "UPDATE projections SET status = 'old', old_at = "+dbtime.Now(d)+" WHERE projection = ? AND build = ?", name, live.build); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "UPDATE projections SET status = 'live', live_at = "+dbtime.Now(d)+", old_at = NULL WHERE projection = ? AND build = ?", name, to.build)
	return err
}

// column is one of a table or a view.
type column struct{ name, typ string }

func typedColumns(ctx context.Context, tx bun.Tx, name string) (columns []column, err error) {
	query := "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(quote_ident(?)) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
	if sqlite(tx) {
		query = "SELECT name, '' FROM pragma_table_info(?) ORDER BY cid"
	}
	err = dbrows.Each(ctx, tx, query, func(scan func(...any) error) error {
		var c column
		err := scan(&c.name, &c.typ)
		columns = append(columns, c)
		return err
	}, name)
	return columns, err
}

func showTable(ctx context.Context, tx bun.Tx, view, table string) error {
	postgres := !sqlite(tx)
	before, err := typedColumns(ctx, tx, view)
	if err != nil {
		return err
	}
	columns, err := typedColumns(ctx, tx, table)
	if err != nil {
		return err
	}
	if kind, err := kindOf(ctx, tx, view); err != nil || kind != "" && kind != "view" {
		if err == nil {
			err = fmt.Errorf("there is a %s of this name: rename it, or drop it", kind)
		}
		return err
	}
	quote := func(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
	var list []string
	retyped := false
	for _, c := range before {
		i := slices.IndexFunc(columns, func(n column) bool { return n.name == c.name })
		switch {
		case i >= 0:
			list = append(list, quote(c.name))
			retyped = retyped || columns[i].typ != c.typ
		case postgres:
			list = append(list, "CAST(NULL AS "+c.typ+") AS "+quote(c.name))
		default:
			list = append(list, "NULL AS "+quote(c.name))
		}
	}
	for _, c := range columns {
		if !slices.ContainsFunc(before, func(b column) bool { return b.name == c.name }) {
			list = append(list, quote(c.name))
		}
	}
	is := quote(view) + " AS SELECT " + strings.Join(list, ", ") + " FROM " + table
	statements := []string{"CREATE OR REPLACE VIEW " + is}
	switch {
	case !postgres:
		statements = []string{"DROP VIEW IF EXISTS " + quote(view), "CREATE VIEW " + is}
	case retyped: // which a view can't be replaced by; who could read it, still may
		grants, err := grantsOn(ctx, tx, view)
		if err != nil {
			return err
		}
		statements = append([]string{"DROP VIEW " + quote(view), "CREATE VIEW " + is}, grants...)
	}
	for _, s := range statements {
		if _, err := tx.Tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// kindOf is what there is of a name: "view", "table", something else, or nothing.
func kindOf(ctx context.Context, tx bun.Tx, name string) (kind string, err error) {
	query := "SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'r' THEN 'table' ELSE 'relation' END FROM pg_class WHERE oid = to_regclass(quote_ident(?))"
	if sqlite(tx) {
		query = "SELECT type FROM sqlite_master WHERE name = ?"
	}
	err = dbrows.Each(ctx, tx, query, func(scan func(...any) error) error { return scan(&kind) }, name)
	return kind, err
}

// grantsOn are the rights that others have been given on a view, as statements.
func grantsOn(ctx context.Context, tx bun.Tx, view string) (all []string, err error) {
	err = dbrows.Each(ctx, tx, "SELECT format('GRANT %s ON %I TO %s', a.privilege_type, c.relname, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END)"+
		" FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = to_regclass(quote_ident(?)) AND a.grantee <> c.relowner", func(scan func(...any) error) error {
		var s string
		err := scan(&s)
		all = append(all, s)
		return err
	}, view)
	return all, err
}

// remove drops the tables of a build and its rows, if may says so by what is there once
// nobody can change it: by an operator's change it may be live again.
func remove(ctx context.Context, p uow.Provider, name string, number int, may func(b *build) error) error {
	err := inTx(ctx, p, func(ctx context.Context, tx bun.Tx) error {
		builds, err := lockBuilds(ctx, tx, name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(builds, func(b *build) bool { return b.build == number })
		if i < 0 {
			return errGone
		}
		if err := may(builds[i]); err != nil {
			return err
		}
		return drop(ctx, tx, builds[i])
	})
	if err != nil {
		return fmt.Errorf("projection %s: remove build %d: %w", name, number, err)
	}
	return nil
}

// dropViews drops those that show a build.
func dropViews(ctx context.Context, tx bun.Tx, b *build) error {
	for table := range b.tables {
		if table == sqlText || b.status != Live {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DROP VIEW IF EXISTS ?", bun.Ident(table)); err != nil {
			return err
		}
	}
	return nil
}

func sqlite(db bun.IDB) bool { return db.Dialect().Name() == dialect.SQLite }

// drop drops the tables of a build and deletes its rows.
func drop(ctx context.Context, tx bun.Tx, b *build) error {
	for table := range b.tables {
		if table == sqlText {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DROP TABLE IF EXISTS "+physical(table, b.build)); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "DELETE FROM projections WHERE projection = ? AND build = ?", b.projection, b.build)
	return err
}
