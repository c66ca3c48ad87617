package outboxdb

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// Contradiction is something in the tables that no step leaves behind.
type Contradiction struct {
	Check    string // "lost", "twice", "bodies", "claims" or "owners"
	What     string // in words
	Rows     int64
	Examples []int64 // of seqs, or numbers of members
}

// contradictions are the questions of [Contradictions].
var contradictions = []struct{ check, what string }{
	{"lost", "events that are neither queued nor abandoned nor in the log of what was published"},
	{"twice", "events that are queued, and abandoned or published as well"},
	{"bodies", "queued events without a body"},
	{"claims", "claims of members that are gone, or of partitions that are another one's"},
	{"owners", "partitions of members that are gone"},
}

// Contradictions proves that each event is accounted for: a body without a queue row
// was published or given up. It reads all of the tables, in one moment.
func (s *Store) Contradictions(ctx context.Context) (found []Contradiction, err error) {
	err = s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		found, err = Contradictions(ctx, db)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: look whether each event is accounted for: %w", err)
	}
	return found, nil
}

// Contradictions asks each question in a statement of its own.
func Contradictions(ctx context.Context, db bun.IDB) (found []Contradiction, err error) {
	for _, q := range contradictions {
		c := Contradiction{Check: q.check, What: q.what}
		err := dbrows.Each(ctx, db, textOf(db, "check_"+q.check), func(scan func(...any) error) error {
			var example int64
			if err := scan(&example, &c.Rows); err != nil {
				return err
			}
			c.Examples = append(c.Examples, example)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if c.Rows > 0 {
			found = append(found, c)
		}
	}
	return found, nil
}
