// Package migrate brings the tables of one feature up to date. Each feature
// owns a Set: its SQL files, one folder per database, numbered from 1.
package migrate

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/uptrace/bun"
)

// Set is one feature's migrations. Files holds postgres/0001_name.sql,
// sqlite/0001_name.sql and so on, without gaps.
type Set struct {
	Feature string // "outbox"
	Files   fs.FS
}

// SchemaError is a database whose tables are not the ones that this build needs.
type SchemaError struct {
	Feature string
	Have    int // 0: the feature was never migrated.
	Need    int
}

func (e *SchemaError) Error() string {
	switch {
	case e.Have == 0:
		return fmt.Sprintf("tables of %s are missing; run `waybill migrate` or engine.Migrate", e.Feature)
	case e.Have < e.Need:
		return fmt.Sprintf("tables of %s are at version %d, this build needs %d; run `waybill migrate` or engine.Migrate", e.Feature, e.Have, e.Need)
	}
	return fmt.Sprintf("tables of %s are at version %d, this build knows only %d; deploy a newer build", e.Feature, e.Have, e.Need)
}

// Up applies what is missing, all of it or nothing, one process at a time.
func (s Set) Up(ctx context.Context, db *bun.DB) error { panic("to be written") }

// Check returns a [*SchemaError] unless the tables are at this build's version.
func (s Set) Check(ctx context.Context, db bun.IDB) error { panic("to be written") }
