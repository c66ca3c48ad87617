package repository

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/rootstate"
)

const (
	defaultPage = 100
	largestPage = 1000
)

// Page is a part of a list that is in the order of identities: as bytes compare where
// they are Waybill's to keep, and as the database compares them in tables of yours.
// What has fewer than Limit was the last page.
type Page struct {
	After string // The last identity of the page before.
	Limit int    // Defaults to 100; 1,000 at most.
}

func (p Page) withDefaults() (Page, error) {
	switch {
	case p.Limit == 0:
		p.Limit = defaultPage
	case p.Limit < 0 || p.Limit > largestPage:
		return p, fmt.Errorf("repository: Page.Limit is %d: give 1 to %d, or 0 for %d, and continue with After", p.Limit, largestPage, defaultPage)
	}
	return p, nil
}

// All loads aggregates in the order of their identities, page by page:
//
//	page := repository.Page{}
//	for {
//		some, err := orders.All(ctx, page)
//		if err != nil || len(some) == 0 {
//			return err
//		}
//		…
//		page.After = some[len(some)-1].ID()
//	}
//
// It sees what the unit of work in ctx has saved.
func (r *Repository[A]) All(ctx context.Context, page Page) ([]A, error) {
	page, err := page.withDefaults()
	if err != nil {
		return nil, err
	}
	return r.search(ctx, func(ctx context.Context, db bun.IDB) ([]stored[A], error) {
		return r.store.list(ctx, db, page.After, page.Limit)
	})
}

// By loads the aggregates that have a value in a [domain.Index] or [domain.Unique], in the
// order of their identities. What programs save that don't know the index yet is found
// too; if that is too much to be looked through, it is an [*UnindexedError].
//
// It sees what the unit of work in ctx has saved.
func (r *Repository[A]) By(ctx context.Context, index, value string, page Page) ([]A, error) {
	page, err := page.withDefaults()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(r.typ.Indexes, func(x domain.DocumentIndex) bool { return x.Name == index })
	if i < 0 {
		return nil, fmt.Errorf("repository: %s has no index %q: declare domain.Index or domain.Unique under its domain.Aggregate", r.typ.Category, index)
	}
	if value == "" {
		return nil, fmt.Errorf("repository: %s by %s: an empty value is in no index", r.typ.Category, index)
	}
	if dbtext.KeyProblem(value) != "" { // nobody can have it
		return nil, nil
	}
	return r.search(ctx, func(ctx context.Context, db bun.IDB) ([]stored[A], error) {
		return r.store.(documents[A]).by(ctx, db, i, value, page)
	})
}

const (
	listDocuments = "SELECT id, version, state, state_version, indexed FROM documents WHERE category = ? AND id > ? AND version > 0 AND state IS NOT NULL ORDER BY id LIMIT ?"
	// entered are those that are in an index under a value, loose those that it doesn't
	// know of. These are read in the order of indexed, which is a range of that index
	// whatever the statistics say.
	entered = "SELECT * FROM (SELECT id, 0 AS loose FROM %s WHERE category = ?0 AND name = ?1 AND value = ?2 AND id > ?3 ORDER BY id LIMIT ?4) AS x"
	loose   = "SELECT * FROM (SELECT id, 1 AS loose FROM documents WHERE category = ?0 AND %s AND id > ?3 AND version > 0 AND state IS NOT NULL ORDER BY indexed LIMIT ?5) AS x"
	// byValue says -1 for indexed of what it has found as loose.
	byValue = "SELECT c.id, coalesce(d.version, 0), d.state, coalesce(d.state_version, 1), CASE c.loose WHEN 1 THEN -1 ELSE coalesce(d.indexed, 0) END FROM (%s UNION ALL %s UNION ALL %s) AS c" +
		" LEFT JOIN documents AS d ON d.category = ?0 AND d.id = c.id ORDER BY c.id, c.loose"
)

func (d documents[A]) list(ctx context.Context, db bun.IDB, after string, limit int) ([]stored[A], error) {
	return d.query(ctx, db, listDocuments, d.typ.Category, after, limit)
}

// by finds documents by an index's value. It is one statement, as it must see the index
// and the loose documents at one moment: what is entered between two looks would be
// seen in neither.
func (d documents[A]) by(ctx context.Context, db bun.IDB, index int, value string, page Page) (all []stored[A], err error) {
	x := d.typ.Indexes[index]
	table := "document_index"
	if x.Unique {
		table = "document_unique"
	}
	query := fmt.Sprintf(byValue, fmt.Sprintf(entered, table), fmt.Sprintf(loose, fmt.Sprint("indexed < ", d.indexed)), fmt.Sprintf(loose, fmt.Sprint("indexed > ", d.indexed)))
	for after := page.After; ; {
		found, err := d.query(ctx, db, query, d.typ.Category, x.Name, value, after, page.Limit, maxLoose+1)
		if err != nil {
			return nil, err
		}
		inIndex, last := 0, ""
		for _, s := range found {
			if isLoose := !s.removed && rootstate.Of(s.aggregate).Stored.Indexed < 0; !isLoose {
				inIndex, last = inIndex+1, s.id
			}
		}
		if len(found)-inIndex > maxLoose {
			return nil, &UnindexedError{Type: d.typ.Name}
		}
		full := inIndex == page.Limit
		for _, s := range found {
			if full && s.id > last { // There may be others of the index before it.
				break
			}
			// What is loose can have another value than the index says, and can be found twice.
			again := len(all) > 0 && all[len(all)-1].id == s.id
			if s.removed || again || rootstate.Of(s.aggregate).Stored.Values[index] != value {
				continue
			}
			if all = append(all, s); len(all) == page.Limit {
				return all, nil
			}
		}
		if !full {
			return all, nil
		}
		after = last
	}
}

func (e events[A]) list(ctx context.Context, db bun.IDB, after string, limit int) (all []stored[A], err error) {
	const ids = "SELECT id FROM events WHERE category = ? AND id > ? AND version = 1 AND n = 1 AND type <> '" + markRefused + "' ORDER BY id LIMIT ?"
	for len(all) < limit {
		var page []string
		if err := db.NewRaw(ids, e.typ.Category, after, limit-len(all)).Scan(ctx, &page); err != nil {
			return nil, e.readError(err)
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1]
		found, err := e.load(ctx, db, page)
		if err != nil {
			return nil, err
		}
		byID := map[string]stored[A]{}
		for _, s := range found {
			byID[s.id] = s
		}
		for _, id := range page {
			if s, ok := byID[id]; ok && !s.removed {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func (m mapped[A, R]) list(ctx context.Context, db bun.IDB, after string, limit int) ([]stored[A], error) {
	return m.find(ctx, db, func(q *bun.SelectQuery) *bun.SelectQuery {
		if after != "" { // which no uuid is
			q = q.Where("?TableAlias.id > ?", after)
		}
		return q.OrderExpr("?TableAlias.id").Limit(int64(limit))
	})
}
