package outboxdb

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
)

// Contradiction is something in the tables that no step leaves behind.
type Contradiction struct {
	What     string // in words
	Rows     int64
	Examples []int64 // of seqs, or numbers of members
}

// contradictions are the questions of [Store.Contradictions], by their files.
var contradictions = []struct{ step, what string }{
	{"check_lost", "events that are neither queued nor abandoned nor in the log of what was published"},
	{"check_twice", "events that are queued, and abandoned or published as well"},
	{"check_bodies", "queued events without a body"},
	{"check_claims", "claims of members that are gone, or of partitions that are another one's"},
	{"check_owners", "partitions of members that are gone"},
}

// Contradictions proves that each event is accounted for: a body without a queue row
// was published or given up. It reads all of the tables, in one moment.
func (s *Store) Contradictions(ctx context.Context) ([]Contradiction, error) {
	var found []Contradiction
	err := s.look(ctx, func(ctx context.Context, db bun.IDB) error {
		for _, q := range contradictions {
			c := Contradiction{What: q.what}
			err := dbrows.Each(ctx, db, s.text(q.step), func(scan func(...any) error) error {
				var example int64
				if err := scan(&example, &c.Rows); err != nil {
					return err
				}
				c.Examples = append(c.Examples, example)
				return nil
			})
			if err != nil {
				return err
			}
			if c.Rows > 0 {
				found = append(found, c)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: look whether each event is accounted for: %w", err)
	}
	return found, nil
}
