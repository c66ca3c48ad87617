package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// shelf is a context whose history is read: books are lent, moved, and some given back.
var shelf = domain.MustNew("shelf",
	domain.Aggregate[*Book]("book", domain.Event[BookLent](), domain.Event[BookMoved](), domain.Event[BookReturned]()),
)

type (
	// Book is lent.
	Book struct{ domain.Root }
	// BookLent makes a row.
	BookLent struct {
		BookID   string `json:"book_id"`
		MemberID string `json:"member_id"`
		Text     string `json:"text"`
	}
	// BookMoved changes it.
	BookMoved struct {
		BookID string `json:"book_id"`
		Place  string `json:"place"`
	}
	// BookReturned removes it.
	BookReturned struct {
		BookID string `json:"book_id"`
	}
	// LentBook is the row.
	LentBook struct {
		BookID   string `bun:",pk"`
		MemberID string
		Place    string
		Text     string
	}
)

// lentBooks is the projection.
func lentBooks() projection.Projection {
	t := projection.NewTable[LentBook]("lent_books")
	return projection.Projection{Name: "lent-books", Tables: []projection.Definition{t}, Handlers: []projection.Handler{
		projection.On(func(ctx context.Context, e BookLent) error {
			return t.Put(ctx, LentBook{BookID: e.BookID, MemberID: e.MemberID, Text: e.Text})
		}),
		projection.On(func(ctx context.Context, e BookMoved) error {
			return t.Change(ctx, e.BookID, func(b *LentBook) { b.Place = e.Place })
		}),
		projection.On(func(ctx context.Context, e BookReturned) error { return t.Remove(ctx, e.BookID) }),
	}}
}

// lend fills the history with n events, in groups of 3,000 books: lent one after the other,
// then moved, then every fourth given back.
func (w *world) lend(ctx context.Context, n int) (left int, err error) {
	units, err := uow.New(uow.Config{Domain: shelf, Providers: []uow.Provider{w.provider}, History: true})
	if err != nil {
		return 0, err
	}
	if err := engine.Migrate(ctx, units); err != nil {
		return 0, err
	}
	if err := w.forget(ctx); err != nil {
		return 0, err
	}
	const group = 3000
	for first := 0; n > 0; first += group {
		for _, kind := range []struct {
			name  string
			every int
			data  string
		}{
			{"BookLent", 1, `'{"book_id":"b-' || i || '","member_id":"m-' || i % 500 || '","text":"` + text()[:200] + `"}'`},
			{"BookMoved", 1, `'{"book_id":"b-' || i || '","place":"p-' || i % 40 || '"}'`},
			{"BookReturned", 4, `'{"book_id":"b-' || i || '"}'`},
		} {
			if n <= 0 {
				break
			}
			last := first + min(group, n*kind.every) - 1
			tag, err := w.sql.Exec(ctx, fmt.Sprintf(`INSERT INTO history (message_id, category, id, version, n, type, data, occurred_at)
				SELECT gen_random_uuid(), 'shelf::book', 'b-' || i, 1, 1, 'Shelf.%s.v1', (%s)::json, now() FROM generate_series(%d, %d, %d) AS i`, kind.name, kind.data, first, last, kind.every))
			if err != nil {
				return 0, err
			}
			rows := int(tag.RowsAffected())
			n -= rows
			switch kind.name {
			case "BookLent":
				left += rows
			case "BookReturned":
				left -= rows
			}
		}
	}
	return left, w.tidy(ctx, "history")
}

func (w *world) forget(ctx context.Context) error {
	return w.each(ctx, "TRUNCATE history", "DROP VIEW IF EXISTS lent_books", "DROP TABLE IF EXISTS lent_books__1", "DROP TABLE IF EXISTS lent_books_by_hand", "TRUNCATE projections CASCADE")
}

// lent says whether a table has so many rows, and the places that were moved to.
func (w *world) lent(ctx context.Context, table string, want int) error {
	var got, placed int
	err := w.sql.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE place <> '') FROM "+table).Scan(&got, &placed)
	if err == nil && (got != want || placed == 0) {
		err = fmt.Errorf("%s has %d rows, %d of them with a place, and not %d", table, got, placed, want)
	}
	return err
}

// rebuild is events per second of a projection that is built anew.
func rebuild(n int) work {
	return func(ctx context.Context, w *world) (_ map[string]float64, err error) {
		left, err := w.lend(ctx, n)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, w.forget(context.WithoutCancel(ctx))) }()
		units, err := uow.New(uow.Config{Domain: shelf, Providers: []uow.Provider{w.provider}, History: true})
		if err != nil {
			return nil, err
		}
		ps, err := projection.New(units, []projection.Projection{lentBooks()}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		if err != nil {
			return nil, err
		}
		r := ps.Runner(w.provider.Name(), nil)
		began := time.Now()
		if err := r.Start(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, r.Stop(context.WithoutCancel(ctx))) }()
		if err := projection.Wait(ctx, units, "lent-books"); err != nil {
			return nil, err
		}
		took := time.Since(began)
		return map[string]float64{"rate": float64(n) / took.Seconds()}, w.lent(ctx, "lent_books", left)
	}
}

// rebuildByHand is a loop that reads the history in order and sends for each event the one
// statement that it comes to, 500 at a time, with its position, in a transaction.
func rebuildByHand(n int) work {
	return func(ctx context.Context, w *world) (_ map[string]float64, err error) {
		left, err := w.lend(ctx, n)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, w.forget(context.WithoutCancel(ctx))) }()
		if err := w.each(ctx, "CREATE TABLE lent_books_by_hand (book_id text PRIMARY KEY, member_id text, place text, text text)",
			"CREATE TABLE IF NOT EXISTS lent_position (position bigint)", "TRUNCATE lent_position", "INSERT INTO lent_position VALUES (0)"); err != nil {
			return nil, err
		}
		began, position := time.Now(), int64(0)
		for {
			next, err := w.handPage(ctx, position)
			if err != nil {
				return nil, err
			}
			if next == position {
				break
			}
			position = next
		}
		took := time.Since(began)
		return map[string]float64{"rate": float64(n) / took.Seconds()}, w.lent(ctx, "lent_books_by_hand", left)
	}
}

func (w *world) handPage(ctx context.Context, after int64) (position int64, err error) {
	rows, err := w.sql.Query(ctx, "SELECT position, type, data FROM history WHERE position > $1 ORDER BY position LIMIT 500", after)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var b pgx.Batch
	position = after
	for rows.Next() {
		var kind string
		var data []byte
		if err := rows.Scan(&position, &kind, &data); err != nil {
			return 0, err
		}
		switch kind {
		case "Shelf.BookLent.v1":
			var e BookLent
			err = json.Unmarshal(data, &e)
			b.Queue("INSERT INTO lent_books_by_hand (book_id, member_id, place, text) VALUES ($1, $2, '', $3) ON CONFLICT (book_id) DO UPDATE SET member_id = excluded.member_id, place = '', text = excluded.text", e.BookID, e.MemberID, e.Text)
		case "Shelf.BookMoved.v1":
			var e BookMoved
			err = json.Unmarshal(data, &e)
			b.Queue("UPDATE lent_books_by_hand SET place = $2 WHERE book_id = $1", e.BookID, e.Place)
		case "Shelf.BookReturned.v1":
			var e BookReturned
			err = json.Unmarshal(data, &e)
			b.Queue("DELETE FROM lent_books_by_hand WHERE book_id = $1", e.BookID)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := rows.Err(); err != nil || b.Len() == 0 {
		return after, err
	}
	rows.Close()
	b.Queue("UPDATE lent_position SET position = $1", position)
	return position, pgx.BeginFunc(ctx, w.sql, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &b).Close() })
}
