// Package migrate brings the tables of one feature up to date. Each feature
// owns a Set: its SQL files, one folder per database, numbered from 1.
package migrate

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
)

// lock is the advisory lock that lets one process at a time migrate a
// PostgreSQL database. SQLite needs none: its transactions are immediate.
const lock int64 = 0x77617962696c6c // "waybill"; more than an int where that has 32 bits

// Set is one feature's migrations. Files holds postgres/0001_name.sql,
// sqlite/0001_name.sql and so on, without gaps. A file is plain SQL, any number
// of statements, without transaction control.
//
// A file whose leading comments have a line "-- tolerates: N" says that builds that
// know version N, or a newer one, work on the tables as it leaves them: their
// processes may start, which makes restarts during a deploy, and a way back, possible.
// Without it only builds that know the file's own version do.
type Set struct {
	Feature string // "outbox"
	Files   fs.FS
	Rights  []Right // on everything that the files make
}

// Embedded is the set of the files that a package has in its folder "migrations".
func Embedded(feature string, folder embed.FS, rights []Right) Set {
	files, err := fs.Sub(folder, "migrations")
	if err != nil {
		panic(err) // the folder is part of this build
	}
	return Set{Feature: feature, Files: files, Rights: rights}
}

// SchemaError is a database whose tables are not the ones that this build needs.
type SchemaError struct {
	Feature string
	Have    int // 0: the feature was never migrated.
	Need    int
	Oldest  int // what builds must know at least where the tables are newer than this one needs
	Hidden  hidden
}

func (e *SchemaError) Error() string {
	switch {
	case e.Hidden.Are():
		return fmt.Sprintf("tables of %s can't be seen: %s; %s", e.Feature, e.Hidden.What(), e.Hidden.Remedy())
	case e.Have == 0:
		return fmt.Sprintf("tables of %s are missing; run `waybill migrate` or engine.Migrate", e.Feature)
	case e.Have < e.Need:
		return fmt.Sprintf("tables of %s are at version %d, this build needs %d; run `waybill migrate` or engine.Migrate", e.Feature, e.Have, e.Need)
	}
	return fmt.Sprintf("tables of %s are at version %d, this build knows only %d; deploy a newer build, which knows %d at least", e.Feature, e.Have, e.Need, e.Oldest)
}

// Up applies what is missing, all of it or nothing, one process at a time. db is
// that of a provider: on SQLite its transactions have to be immediate. Tables of
// a newer build are left alone and are a [*SchemaError].
func (s Set) Up(ctx context.Context, db *bun.DB) error {
	// Without a lock first: a service that may not create tables has nothing to
	// create once they exist.
	err := s.Check(ctx, db)
	missing, ok := errors.AsType[*SchemaError](err)
	if !ok || missing.Have > missing.Need || missing.Hidden.Are() {
		return err
	}
	if err := s.up(ctx, db); err != nil {
		return fmt.Errorf("migrate: tables of %s: %w", s.Feature, denied(err))
	}
	return nil
}

func (s Set) up(ctx context.Context, db *bun.DB) error {
	files, err := s.Steps(db.Dialect())
	if err != nil {
		return err
	}
	return dbtx.Run(ctx, db, func(tx bun.Tx) error { return s.catchUp(ctx, tx, files) })
}

// catchUp takes the steps that are missing, when nobody else does.
func (s Set) catchUp(ctx context.Context, tx bun.Tx, files []Step) error {
	if tx.Dialect().Name() == dialect.PG {
		// Who migrates takes its time. What a role or DSN sets bounds the steps, and not the turn.
		if _, err := tx.ExecContext(ctx, "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock(?); "+
			"SET LOCAL lock_timeout TO DEFAULT; SET LOCAL statement_timeout TO DEFAULT", lock); err != nil {
			return err
		}
	}
	if err := keepBooks(ctx, tx); err != nil {
		return err
	}
	have, err := s.version(ctx, tx)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Version <= have {
			continue
		}
		// Past bun, which would take a question mark in the SQL for an argument.
		if _, err := tx.Tx.ExecContext(ctx, f.SQL); err != nil {
			return fmt.Errorf("%s: %w", f.Name, taken(err))
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO waybill_migrations (feature, version, tolerates, applied_at) VALUES (?, ?, ?, ?)",
			s.Feature, f.Version, f.Tolerates, dbtime.Value(tx.Dialect(), time.Now())); err != nil {
			return err
		}
	}
	return nil
}

// taken adds what helps to the error of a file that makes what is there already.
func taken(err error) error {
	switch code := dberr.CodeOf(err); {
	case code == "42P07", code == "42710", code == "42723", strings.HasPrefix(code, "sqlite") && strings.Contains(err.Error(), "already exists"):
		return fmt.Errorf("something of that name is there, and waybill_migrations doesn't say that a migration made it: %s: %w", ToRestoreBooks, err)
	}
	return err
}

// ToRestoreBooks is what helps where there are tables that waybill_migrations doesn't know.
const ToRestoreBooks = "if Waybill made it, a restore has left out waybill_migrations: restore the whole backup, or that table as well; if it is yours, give Waybill a schema or a database of its own, or your table another name"

// Check returns a [*SchemaError] unless the tables are at this build's version, or at a
// newer one that tolerates it. It may run inside a transaction, and leaves that usable.
func (s Set) Check(ctx context.Context, db bun.IDB) error {
	files, err := s.Steps(db.Dialect())
	if err != nil {
		return fmt.Errorf("migrate: tables of %s: %w", s.Feature, err)
	}
	have, oldest, err := s.reached(ctx, db, len(files))
	if err != nil {
		return fmt.Errorf("migrate: version of %s: %w", s.Feature, err)
	}
	if have == len(files) || have > len(files) && oldest <= len(files) {
		return nil
	}
	wrong := &SchemaError{Feature: s.Feature, Have: have, Need: len(files), Oldest: oldest}
	if have == 0 && db.Dialect().Name() == dialect.PG {
		if wrong.Hidden, err = hiddenFrom(ctx, db); err != nil {
			return fmt.Errorf("migrate: version of %s: %w", s.Feature, err)
		}
	}
	return wrong
}

// reached is the version that the tables are at and, where a build that needs another one
// has older files, what a build must know at least: each file since then has to tolerate it.
func (s Set) reached(ctx context.Context, db bun.IDB, need int) (have, oldest int, err error) {
	exists, err := bookkept(ctx, db)
	if err != nil || !exists {
		return 0, 0, err
	}
	if have, err = s.version(ctx, db); err != nil || have <= need {
		return have, 0, err
	}
	known, err := tolerating(ctx, db)
	if err != nil || !known {
		return have, have, err
	}
	err = db.NewRaw("SELECT max(coalesce(tolerates, version)) FROM waybill_migrations WHERE feature = ? AND version > ?", s.Feature, need).Scan(ctx, &oldest)
	return have, oldest, err
}

func (s Set) version(ctx context.Context, db bun.IDB) (have int, err error) {
	err = db.NewRaw("SELECT coalesce(max(version), 0) FROM waybill_migrations WHERE feature = ?", s.Feature).Scan(ctx, &have)
	return have, err
}

// Step is one file of a feature.
type Step struct {
	Feature string `json:"feature"`
	Version int    `json:"version"`
	Name    string `json:"file"` // "0001_outbox.sql"
	// Tolerates is the version that a build must know at least to run once the file was
	// applied.
	Tolerates int    `json:"tolerates"`
	SQL       string `json:"-"`
}

// Steps are the migrations for one kind of database, in order, numbered 1, 2, 3 …
func (s Set) Steps(d schema.Dialect) ([]Step, error) {
	dir := "postgres"
	switch d.Name() {
	case dialect.PG:
	case dialect.SQLite:
		dir = "sqlite"
	default:
		return nil, fmt.Errorf("no tables for %s: use PostgreSQL or SQLite", d.Name())
	}
	entries, err := fs.ReadDir(s.Files, dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var files []Step
	for _, e := range entries {
		number, _, ok := strings.Cut(e.Name(), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || len(number) != 4 || !strings.HasSuffix(e.Name(), ".sql") {
			return nil, fmt.Errorf("%s/%s is not called like 0001_name.sql", dir, e.Name())
		}
		if version != len(files)+1 {
			return nil, fmt.Errorf("%s/%s: expected number %04d", dir, e.Name(), len(files)+1)
		}
		sql, err := fs.ReadFile(s.Files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		tolerates, err := tolerated(string(sql), version)
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", dir, e.Name(), err)
		}
		files = append(files, Step{Feature: s.Feature, Version: version, Name: e.Name(), Tolerates: tolerates, SQL: string(sql)})
	}
	return files, nil
}
