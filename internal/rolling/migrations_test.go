package rolling_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/uow"
)

// known is a feature's set as a build has it that knows only so many versions.
func known(t *testing.T, s migrate.Set, versions int) migrate.Set {
	t.Helper()
	files := fstest.MapFS{}
	for folder, d := range map[string]schema.Dialect{"postgres": pgdialect.New(), "sqlite": sqlitedialect.New()} {
		steps, err := s.Steps(d)
		require.NoError(t, err)
		for _, step := range steps[:versions] {
			files[folder+"/"+step.Name] = &fstest.MapFile{Data: []byte(step.SQL)}
		}
	}
	return migrate.Set{Feature: s.Feature, Files: files}
}

// O15: every migration of a feature that had tables says in its head which builds it
// tolerates, the same on both databases, and if not those right before it, why.
func TestMigrations_O15_SayWhatTheyTolerate(t *testing.T) {
	for _, s := range rights.Features() {
		postgres, err := s.Steps(pgdialect.New())
		require.NoError(t, err)
		lite, err := s.Steps(sqlitedialect.New())
		require.NoError(t, err)
		require.Len(t, lite, len(postgres), s.Feature)
		for i := 1; i < len(postgres); i++ {
			require.Equal(t, postgres[i].Tolerates, lite[i].Tolerates, "%s: %s", s.Feature, postgres[i].Name)
			for _, step := range []migrate.Step{postgres[i], lite[i]} {
				name := s.Feature + ": " + step.Name
				lines := strings.SplitN(step.SQL, "\n", 3)
				require.Equal(t, fmt.Sprintf("-- tolerates: %d", step.Tolerates), lines[0], name)
				if step.Tolerates == step.Version {
					require.True(t, strings.HasPrefix(lines[1], "-- Builds ") || strings.HasPrefix(lines[1], "-- There is no build "), "%s has to say why", name)
				}
			}
		}
	}
}

// O15: after each migration, every build of before is let in or refused as the files say,
// and is told which builds are not; where one is let in, what it knows is still there, and
// its statements can leave out what is new.
func TestMigrations_O15_EachWithAllBuildsOfBefore(t *testing.T) {
	t.Parallel()
	pg, _ := dbtest.Postgres(t)
	for name, p := range map[string]uow.Provider{"postgres": pg, "sqlite": dbtest.SQLite(t)} {
		for _, s := range rights.Features() {
			steps, err := s.Steps(p.DB().Dialect())
			require.NoError(t, err)
			require.NoError(t, known(t, s, 1).Up(t.Context(), p.DB()))
			shapes := []shape{shapeOf(t, p.DB())}
			for _, step := range steps[1:] {
				at := fmt.Sprintf("%s: %s/%s", s.Feature, name, step.Name)
				require.NoError(t, known(t, s, step.Version).Up(t.Context(), p.DB()), at)
				shapes = append(shapes, shapeOf(t, p.DB()))
				for build := 1; build < step.Version; build++ {
					oldest := 0 // what all migrations since then take
					for _, since := range steps[build:step.Version] {
						oldest = max(oldest, since.Tolerates)
					}
					old := known(t, s, build)
					err := old.Check(t.Context(), p.DB())
					require.Equal(t, err, old.Up(t.Context(), p.DB()), at)
					if build >= oldest {
						require.NoError(t, err, at)
						require.Empty(t, shapes[build-1].lost(shapes[step.Version-1]), "%s: what a build misses that knows %d", at, build)
						continue
					}
					require.EqualError(t, err, fmt.Sprintf("tables of %s are at version %d, this build knows only %d; deploy a newer build, which knows %d at least",
						s.Feature, step.Version, build, oldest), at)
				}
			}
		}
	}
}

// shape is what statements rely on: of each table its columns, each with its type and
// whether an insert may leave it out, and its unique indexes.
type shape struct {
	columns map[string]string // by table.column: its type, and "!" if it has to be given
	unique  map[string]string // by name: table.column of each, with blanks
}

func shapeOf(t *testing.T, db *bun.DB) shape {
	t.Helper()
	columns := `SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND c.relkind <> 'v' THEN '!' ELSE '' END
		FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
		WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped`
	unique := `SELECT x.indexrelid::regclass::text, (SELECT string_agg(c.relname || '.' || a.attname, ' ' ORDER BY a.attnum) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = ANY(x.indkey::smallint[]))
		FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indrelid WHERE c.relnamespace = current_schema()::regnamespace AND x.indisunique`
	if db.Dialect().Name() == dialect.SQLite {
		columns = `SELECT m.name || '.' || c.name, c.type || CASE WHEN c."notnull" AND c.dflt_value IS NULL AND c.pk = 0 THEN '!' ELSE '' END
			FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c WHERE m.type IN ('table', 'view')`
		unique = `SELECT x.name, (SELECT group_concat(m.name || '.' || i.name, ' ') FROM pragma_index_info(x.name) AS i) FROM sqlite_master AS m JOIN pragma_index_list(m.name) AS x WHERE m.type = 'table' AND x."unique"`
	}
	read := func(query string) map[string]string {
		all := map[string]string{}
		require.NoError(t, dbrows.Each(t.Context(), db, query, func(scan func(...any) error) error {
			var key string
			var value *string // null: of an expression
			err := scan(&key, &value)
			if value != nil {
				all[key] = *value
			}
			return err
		}))
		return all
	}
	s := shape{read(columns), read(unique)}
	require.NotEmpty(t, s.columns)
	require.NotEmpty(t, s.unique)
	return s
}

// lost is what a build that was made for s misses in another shape: columns that are gone or
// have another type, those that an insert has to give now, and rules of uniqueness that it
// doesn't know, over columns of its own alone.
func (s shape) lost(now shape) (all []string) {
	for _, column := range slices.Sorted(maps.Keys(s.columns)) {
		if have, want := now.columns[column], s.columns[column]; have != want && have+"!" != want {
			all = append(all, fmt.Sprintf("%s was %q and is %q", column, want, have))
		}
	}
	tables := map[string]bool{}
	for column := range s.columns {
		tables[strings.Split(column, ".")[0]] = true
	}
	for column, kind := range now.columns {
		if _, had := s.columns[column]; !had && tables[strings.Split(column, ".")[0]] && strings.HasSuffix(kind, "!") {
			all = append(all, column+" is new and has to be given")
		}
	}
	for name, columns := range now.unique {
		own := !slices.ContainsFunc(strings.Fields(columns), func(c string) bool { _, had := s.columns[c]; return !had })
		if own && !slices.Contains(slices.Collect(maps.Values(s.unique)), columns) {
			all = append(all, name+" is a new rule over "+columns)
		}
	}
	return all
}

// O15: an engine that is too old for its database doesn't start, and says what is needed; one
// that is tolerated does.
func TestMigrations_O15_EnginesStartOrSayWhy(t *testing.T) {
	t.Parallel()
	before, _, _ := builds(t)
	d := &deployment{t: t, db: dbtest.SQLite(t), own: memory.New(memory.Config{}), partner: memory.New(memory.Config{}), running: map[string]running{}}
	units := d.migrate(before)
	note := func(version, tolerates int) {
		_, err := d.db.DB().ExecContext(t.Context(), "INSERT INTO waybill_migrations (feature, version, tolerates, applied_at) VALUES ('outbox', ?, ?, '2026-01-01T00:00:00.000Z')", version, tolerates)
		require.NoError(t, err)
	}
	var have int
	require.NoError(t, d.db.DB().NewRaw("SELECT max(version) FROM waybill_migrations WHERE feature = 'outbox'").Scan(t.Context(), &have))
	note(have+1, have)
	e := d.engine(before, units)
	require.NoError(t, e.Start(t.Context()))
	require.NoError(t, e.Stop(t.Context()))
	note(have+2, have+1)
	err := d.engine(before, units).Start(t.Context())
	require.ErrorContains(t, err, fmt.Sprintf("tables of outbox are at version %d, this build knows only %d; deploy a newer build, which knows %d at least", have+2, have, have+1))
}

// O15: a migration that isn't what an older build can work with is noticed.
func TestMigrations_O15_TheLossesAreSeen(t *testing.T) {
	t.Parallel()
	pg, _ := dbtest.Postgres(t)
	for _, p := range []uow.Provider{pg, dbtest.SQLite(t)} {
		exec := func(query string) {
			_, err := p.DB().DB.ExecContext(t.Context(), query)
			require.NoError(t, err)
		}
		exec("CREATE TABLE things (id text NOT NULL, n integer NOT NULL DEFAULT 1, note text, PRIMARY KEY (id))")
		was := shapeOf(t, p.DB())
		exec("ALTER TABLE things ADD COLUMN extra text; CREATE TABLE more (id text PRIMARY KEY); CREATE UNIQUE INDEX things_extra ON things (extra, id)")
		require.Empty(t, was.lost(shapeOf(t, p.DB())))
		exec("CREATE UNIQUE INDEX things_note ON things (note)")
		require.Equal(t, []string{"things_note is a new rule over things.note"}, was.lost(shapeOf(t, p.DB())))
		exec("DROP INDEX things_note; ALTER TABLE things DROP COLUMN note")
		require.Len(t, was.lost(shapeOf(t, p.DB())), 1)
		exec("DROP TABLE things; CREATE TABLE things (id text NOT NULL PRIMARY KEY, n bigint NOT NULL DEFAULT 1, note text, more text NOT NULL)")
		require.Len(t, was.lost(shapeOf(t, p.DB())), 2)
	}
}
