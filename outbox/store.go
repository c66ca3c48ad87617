package outbox

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// Store is the outbox of one database, as processors and operators see it. It
// is safe for concurrent use.
type Store struct {
	db     *bun.DB
	reader *bun.DB
}

// NewStore returns the store on a database: db for what writes, reader for what
// only looks.
func NewStore(db, reader *bun.DB) *Store { return &Store{db: db, reader: reader} }

// Check returns an error that names the remedy unless the tables are at this
// build's version.
func (s *Store) Check(ctx context.Context) error { panic("to be written") }

// Stats is a target's state in the database. Nil is "not known", never zero.
type Stats struct {
	Counts        map[Status]int64 // every status, also those without a row
	OldestPending *time.Duration   // age of the oldest row that is due to leave; nil if there is none
	LeaseOwners   []string         // workers that hold partitions now
	LastError     *string          // of the row that failed last
}

// Stats returns the state of every target that has rows or partitions.
func (s *Store) Stats(ctx context.Context) (map[string]Stats, error) { panic("to be written") }
