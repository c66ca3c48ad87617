// Package rights says what roles that don't own Waybill's tables need on them in
// PostgreSQL, how to give it to them, and what is missing.
package rights

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
)

// Features are all that have tables.
func Features() []migrate.Set {
	return []migrate.Set{outboxdb.Migrations(), timerdb.Migrations(), historydb.Migrations(), repository.Migrations(), subscription.Migrations(), command.Migrations(), process.Migrations(), projection.Migrations()}
}

// On are the rights on everything that the migrations of features make.
func On(features []migrate.Set) []migrate.Right {
	var all []migrate.Right
	add := func(r migrate.Right) {
		r.Kind = cmp.Or(r.Kind, migrate.Table)
		if !slices.Contains(all, r) { // the history's positions are of two features
			all = append(all, r)
		}
	}
	add(migrate.Bookkeeping())
	for _, s := range features {
		for _, r := range s.Rights {
			add(r)
		}
	}
	return all
}

// Grantee is a user of the database, and what it does there.
type Grantee struct {
	Role migrate.Role
	Name string
}

// Parse reads app=NAME. A role alone is one called waybill_app, waybill_engine or
// waybill_read.
func Parse(text string) (g Grantee, err error) {
	role, name, named := strings.Cut(text, "=")
	g = Grantee{Role: migrate.Role(role), Name: name}
	if !named {
		g.Name = "waybill_" + role
	}
	switch {
	case !slices.Contains(migrate.Roles(), g.Role), g.Name == "", strings.ContainsFunc(g.Name, unicode.IsControl):
		return g, fmt.Errorf("--role %q: give app, engine or read, and the name of the role of PostgreSQL that does it, as in app=orders", text)
	case g.Name == "public":
		return g, fmt.Errorf("--role %s: public is everybody, and not a role: name one", text)
	}
	return g, nil
}

// does says in words what a role is for.
var does = map[migrate.Role]string{
	migrate.Read:   "looks: observatory, doctor, waybill outbox stats|list|show",
	migrate.App:    "saves and consumes: units of work, repositories, subscriptions",
	migrate.Engine: "runs an engine: publishes, consumes, cleans up, and does what operators ask for",
}

// Grants are the statements that give a grantee what it needs, for the schema in
// which db finds its tables, or would create them.
func Grants(ctx context.Context, db bun.IDB, g Grantee, on []migrate.Set) ([]string, error) {
	schema, name, err := g.names(ctx, db)
	if err != nil {
		return nil, err
	}
	all := []string{fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, name)}
	for _, s := range together(On(on), g.Role) {
		all = append(all, fmt.Sprintf("GRANT %s ON %s %s.%s TO %s", s.privileges, s.kind, schema, strings.Join(s.names, ", "+schema+"."), name))
	}
	return all, nil
}

// names are those of the schema and the grantee, as SQL has them.
func (g Grantee) names(ctx context.Context, db bun.IDB) (schema, name string, err error) {
	if schema, _, err = migrate.Schema(ctx, db); err == nil {
		err = db.NewRaw("SELECT quote_ident(?)", g.Name).Scan(ctx, &name)
	}
	if err != nil {
		return "", "", fmt.Errorf("rights: %w", err)
	}
	return schema, name, nil
}

// grant is what a role needs on several objects alike.
type grant struct {
	kind       migrate.Kind
	privileges string
	names      []string
}

func together(rights []migrate.Right, role migrate.Role) (all []grant) {
	for _, r := range rights {
		privileges := strings.Join(r.Of(role), ", ")
		if privileges == "" {
			continue
		}
		i := slices.IndexFunc(all, func(g grant) bool { return g.kind == r.Kind && g.privileges == privileges })
		if i < 0 {
			i, all = len(all), append(all, grant{kind: r.Kind, privileges: privileges})
		}
		all[i].names = append(all[i].names, r.Name)
	}
	return all
}

// Script is what Grants says as SQL for psql, one transaction.
func Script(ctx context.Context, db bun.IDB, to []Grantee) (string, error) {
	var b strings.Builder
	b.WriteString("-- Rights of roles that don't own the tables; the roles have to be there (CREATE ROLE … LOGIN).\n" +
		"-- Tables of your own (repository.Mapped, uow.DB) are not among these: they need grants of their own.\n" +
		"BEGIN;\n")
	for _, g := range to {
		all, err := Grants(ctx, db, g, Features())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "\n-- %s %s.\n%s;\n", g.Name, does[g.Role], strings.Join(all, ";\n"))
		if g.Role == migrate.Engine { // Not unasked: who has no projections does without.
			schema, name, err := g.names(ctx, db)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "-- If it runs projections, whose tables and views it makes:\n-- GRANT CREATE ON SCHEMA %s TO %s;\n", schema, name)
		}
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}

// Give gives grantees what they need of the tables of some features.
func Give(ctx context.Context, db *bun.DB, to []Grantee, on []migrate.Set) error {
	for _, g := range to {
		all, err := Grants(ctx, db, g, on)
		if err != nil {
			return err
		}
		// In one message they are one transaction.
		if _, err := db.DB.ExecContext(ctx, strings.Join(all, "; ")); err != nil {
			return fmt.Errorf("rights: give role %s what %s needs: %w", g.Name, g.Role, err)
		}
	}
	return nil
}

// Lack is an object on which a user has not all that it needs.
type Lack struct {
	Where string // "table outbox"
	What  string // "SELECT, INSERT"
	Grant string
	Who   string // Who of a role needs it; "": all of it.
}

// Missing says what a grantee lacks, of what is there.
func Missing(ctx context.Context, db bun.IDB, g Grantee) (all []Lack, err error) {
	schema, _, err := migrate.Schema(ctx, db)
	if err != nil {
		return nil, err
	}
	var name string
	var usage bool
	if err := db.NewRaw("SELECT quote_ident(?0), coalesce(has_schema_privilege(?0, to_regnamespace(?1), 'USAGE'), TRUE)", g.Name, schema).Scan(ctx, &name, &usage); err != nil {
		return nil, err
	}
	if !usage {
		all = append(all, Lack{Where: "schema " + schema, What: "USAGE", Grant: fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, name)})
	}
	for _, r := range On(Features()) {
		lacks, err := lacking(ctx, db, g, schema, r)
		if err != nil {
			return nil, err
		}
		if len(lacks) > 0 {
			what := strings.Join(lacks, ", ")
			all = append(all, Lack{
				Where: strings.ToLower(string(r.Kind)) + " " + r.Name, What: what,
				Grant: fmt.Sprintf("GRANT %s ON %s %s.%s TO %s", what, r.Kind, schema, r.Name, name),
			})
		}
	}
	if g.Role == migrate.Engine {
		projections, err := makesTables(ctx, db, g, schema)
		all = append(all, projections...)
		return all, err
	}
	return all, nil
}

// makesTables is the right to make tables, which an engine needs that runs projections: if
// there are any.
func makesTables(ctx context.Context, db bun.IDB, g Grantee, schema string) ([]Lack, error) {
	var reads bool
	err := db.NewRaw("SELECT coalesce(bool_or(has_table_privilege(current_user, oid, 'SELECT')), FALSE) FROM pg_class WHERE relnamespace = to_regnamespace(?) AND relname = 'projections'", schema).Scan(ctx, &reads)
	if err != nil || !reads { // It isn't there, or isn't for this role: others tell.
		return nil, err
	}
	var some bool
	if err := db.NewRaw("SELECT EXISTS (SELECT 1 FROM projections)").Scan(ctx, &some); err != nil || !some {
		return nil, err
	}
	grant, err := migrate.LacksCreate(ctx, db, g.Name)
	if err != nil || grant == "" {
		return nil, err
	}
	return []Lack{{Where: "schema " + schema, What: "CREATE", Grant: grant, Who: "an engine that runs projections"}}, nil
}

// lacking are those of the privileges that a grantee needs and doesn't have. What is
// not there is for others to tell.
func lacking(ctx context.Context, db bun.IDB, g Grantee, schema string, r migrate.Right) (lacks []string, err error) {
	var checks []string
	var args []any
	for _, privilege := range r.Of(g.Role) {
		has, values := "has_"+strings.ToLower(string(r.Kind))+"_privilege(?, oid, ?)", []any{g.Name, privilege}
		if kind, column, ok := strings.Cut(strings.TrimSuffix(privilege, ")"), " ("); ok {
			has, values = "has_column_privilege(?, oid, ?, ?)", []any{g.Name, column, kind}
		}
		checks = append(checks, "SELECT ? FROM o WHERE NOT "+has)
		args = append(append(args, privilege), values...)
	}
	if len(checks) == 0 {
		return nil, nil
	}
	// Not by to_regclass, which takes the right to use the schema.
	object := "SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace(?) AND relname = ?"
	if r.Kind == migrate.Function {
		object = "SELECT oid FROM pg_proc WHERE pronamespace = to_regnamespace(?) AND proname || '(' || oidvectortypes(proargtypes) || ')' = ?"
	}
	query := "WITH o AS (" + object + ") " + strings.Join(checks, " UNION ALL ")
	err = dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var privilege string
		err := scan(&privilege)
		lacks = append(lacks, privilege)
		return err
	}, append([]any{schema, r.Name}, args...)...)
	return lacks, err
}
