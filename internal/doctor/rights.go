package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
)

// rights looks for what roles may not do that they have to: those that were named,
// or the one that the database was opened as.
func (e *exam) rights(ctx context.Context, db bun.IDB) (string, error) {
	to, fine := e.roles, []string{}
	if len(to) == 0 {
		g, all, err := e.self(ctx, db)
		if err == nil && g.Name != "" {
			err = e.hidden(ctx, db, g.Name)
		}
		if err != nil || all != "" {
			return all, err
		}
		to = []rights.Grantee{g}
	}
	for _, g := range e.roles {
		if err := e.hidden(ctx, db, g.Name); err != nil {
			return "", err
		}
	}
	for _, g := range to {
		lacks, err := rights.Missing(ctx, db, g)
		if err != nil {
			return "", err
		}
		severity := Critical
		if g.Role == migrate.Read {
			severity = Warning
		}
		for _, l := range lacks {
			e.add(severity, l.Where, fmt.Sprintf("role %s lacks %s, which %s needs", g.Name, l.What, cmp.Or(l.Who, doing[g.Role])), "as the owner of the tables: "+l.Grant)
		}
		fine = append(fine, fmt.Sprintf("role %s has what %s needs", g.Name, doing[g.Role]))
	}
	return strings.Join(fine, "; "), nil
}

// hidden looks for row security that may keep rows of Waybill's tables from a role. Nothing
// else would tell: what a role can't see is not there for it. A policy that lets it see and
// write everything, and none that restricts it, does no harm.
func (e *exam) hidden(ctx context.Context, db bun.IDB, role string) error {
	schema, _, err := migrate.Schema(ctx, db)
	if err != nil {
		return err
	}
	var names []string
	for _, r := range rights.On(rights.Features()) {
		names = append(names, r.Name)
	}
	const query = `SELECT c.relname, quote_ident(r.rolname) FROM pg_class AS c, pg_roles AS r
WHERE r.rolname = ? AND c.relnamespace = to_regnamespace(?) AND c.relname IN (?) AND c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
	AND (c.relforcerowsecurity OR NOT pg_has_role(r.oid, c.relowner, 'USAGE'))
	AND (EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid AND NOT p.polpermissive)
		OR NOT EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd = '*' AND pg_get_expr(p.polqual, c.oid) = 'true'
			AND coalesce(pg_get_expr(p.polwithcheck, c.oid), 'true') = 'true'
			AND EXISTS (SELECT FROM unnest(p.polroles) AS m WHERE m = 0 OR pg_has_role(r.oid, m, 'USAGE'))))
ORDER BY c.relname`
	return dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var table, name string
		err := scan(&table, &name)
		e.add(Critical, "table "+table, "row security hides rows of it from role "+role+": what a role can't see it neither publishes nor handles nor removes, and nothing fails",
			fmt.Sprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY, or ALTER ROLE %s BYPASSRLS; then restart the engines", table, name))
		return err
	}, role, schema, bun.List(names))
}

// doing is who needs the rights of a role.
var doing = map[migrate.Role]string{migrate.Read: "somebody who only reads", migrate.App: "an application that saves and consumes", migrate.Engine: "an engine"}

// self is the role that the database was opened as. It is taken for what it may do
// most of: one that may change the outbox for an engine's, one that may add to it for
// an application's. all is not empty for one that may do everything: it has no need
// to, which is said and is no finding.
func (e *exam) self(ctx context.Context, db bun.IDB) (g rights.Grantee, all string, err error) {
	var super, owner, changes, adds bool
	schema, _, err := migrate.Schema(ctx, db)
	if err != nil {
		return g, "", err
	}
	err = db.NewRaw("SELECT current_user, r.rolsuper, pg_has_role(r.oid, c.relowner, 'USAGE'),"+
		" has_table_privilege(r.oid, c.oid, 'UPDATE'), has_table_privilege(r.oid, c.oid, 'INSERT')"+
		" FROM pg_roles AS r, pg_class AS c WHERE r.rolname = current_user AND c.relnamespace = to_regnamespace(?) AND c.relname = 'outbox_queue'", schema).Scan(ctx, &g.Name, &super, &owner, &changes, &adds)
	const less = "; programs need less: `waybill migrate --print --role app=NAME --role engine=NAME` writes what"
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return g, "there is no outbox yet", nil
	case err != nil:
		return g, "", err
	case super:
		return g, "role " + g.Name + " is a superuser" + less, nil
	case owner:
		return g, "role " + g.Name + " owns the tables" + less, nil
	case changes:
		g.Role = migrate.Engine
	case adds:
		g.Role = migrate.App
	default:
		g.Role = migrate.Read
	}
	return g, "", nil
}
