package chaos

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill/internal/verdict"
)

// Collect is what a database with a [Witness] knows: rows, steps, endings, thefts, and what
// the documents of accounts say.
func Collect(ctx context.Context, db *sql.DB) (verdict.Evidence, error) {
	e := verdict.Evidence{Moves: map[string]int64{}}
	for _, part := range []struct {
		query string
		row   func(scan func(...any) error) error
	}{
		{"SELECT seq, message_id::text, partition_key, status, attempts, losses, COALESCE(failure_class, ''), held, payload FROM outbox ORDER BY seq", func(scan func(...any) error) error {
			var r verdict.Row
			err := scan(&r.Seq, &r.ID, &r.Key, &r.Status, &r.Attempts, &r.Losses, &r.Class, &r.Held, &r.Body)
			e.Rows = append(e.Rows, r)
			return err
		}},
		{"SELECT at, name, by, early::text FROM endings ORDER BY at", func(scan func(...any) error) error {
			var g verdict.Ending
			err := scan(&g.At, &g.Name, &g.By, &g.Early)
			e.Endings = append(e.Endings, g)
			return err
		}},
		{"SELECT seq, at, old, new, owner, member, claim, lost, paid FROM witness ORDER BY n", func(scan func(...any) error) error {
			var s verdict.Step
			err := scan(&s.Seq, &s.At, &s.Old, &s.New, &s.Owner, &s.Member, &s.Claim, &s.Lost, &s.Paid)
			e.Steps = append(e.Steps, s)
			return err
		}},
		{"SELECT id, (state ->> 'Moves')::bigint FROM documents", func(scan func(...any) error) error {
			var id string
			var moves int64
			err := scan(&id, &moves)
			e.Moves[id] = moves
			return err
		}},
		{"SELECT what FROM thefts", func(scan func(...any) error) error {
			var what string
			err := scan(&what)
			e.Thefts = append(e.Thefts, what)
			return err
		}},
	} {
		if err := Each(ctx, db, part.query, part.row); err != nil {
			return e, fmt.Errorf("%s: %w", part.query, err)
		}
	}
	return e, nil
}

// Each calls row for each row of a query.
func Each(ctx context.Context, db *sql.DB, query string, row func(scan func(...any) error) error, args ...any) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
