package repository

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/rootstate"
	"github.com/waybill-go/waybill/uow"
)

// What documents are found by.
//
// The values of a document are rows of document_index and document_unique, written
// behind it in its transaction, so the lock on the document orders their writers.
// documents.indexed says under which indexes a document was entered, as a fingerprint
// of their names: every save writes that of its program. A document that another
// program has saved, of before an index or after it, is loose by that: programs that
// know other indexes can run side by side, and what they save is found all the same.
//
//   - [Repository.By] reads the index and all loose documents, in one snapshot.
//   - A unique value is taken only while there are no loose documents, any of which
//     could have it. Otherwise the unit fails, the loose documents are entered, and Do
//     runs its function again.
//   - [Repository.Reindex] enters all of them, once, when an index is new.
//
// A loose document with a unique value that another one has is entered but for that
// value, and marked. It is loose to readers, and not to those who take values: theirs
// are others than its own, which is taken.
//
// Two units that take one value: the second waits for the first at the unique key, and
// then changes no row. What a unit frees it frees before it takes anything.

const (
	// maxLoose is how many loose documents are read with an index, or entered by the way.
	maxLoose = 1000
	// entering is how many documents are entered in one transaction.
	entering = 200
)

// fingerprint of indexes is even and above 0; the odd number behind it is the mark. 0:
// there are none.
func fingerprint(indexes []domain.DocumentIndex) int64 {
	if len(indexes) == 0 {
		return 0
	}
	var names []string
	for _, x := range indexes {
		names = append(names, fmt.Sprintf("%s %t\n", x.Name, x.Unique))
	}
	slices.Sort(names)
	h := fnv.New64a()
	for _, name := range names {
		_, _ = h.Write([]byte(name))
	}
	return int64(cmp.Or(h.Sum64()>>1&^1, 2)) //nolint:gosec // 63 bits
}

// values are what a document is found by.
func (d documents[A]) values(a A) []string {
	if len(d.typ.Indexes) == 0 {
		return nil
	}
	values := make([]string, len(d.typ.Indexes))
	for i, x := range d.typ.Indexes {
		values[i] = x.Of(a)
	}
	return values
}

const (
	setValue      = "INSERT INTO document_index (category, name, id, value) VALUES (?, ?, ?, ?)" + setAnew
	clearValue    = "DELETE FROM document_index WHERE category = ? AND name = ? AND id = ?"
	setPrepared   = "INSERT INTO document_index (category, name, id, value) VALUES ($1, $2, $3, $4)" + setAnew
	clearPrepared = "DELETE FROM document_index WHERE category = $1 AND name = $2 AND id = $3"
	setAnew       = " ON CONFLICT (category, name, id) DO UPDATE SET value = excluded.value WHERE document_index.value <> excluded.value"
	freeUnique    = "DELETE FROM document_unique WHERE category = ? AND name = ? AND id = ? AND value <> ?"
	freePrepared  = "DELETE FROM document_unique WHERE category = $1 AND name = $2 AND id = $3 AND value <> $4"
	takeUnique    = "INSERT INTO document_unique (category, name, value, id) VALUES (?, ?, ?, ?)" + takeOwn
	takePrepared  = "INSERT INTO document_unique (category, name, value, id) VALUES ($1, $2, $3, $4)" + takeOwn
	takeOwn       = " ON CONFLICT (category, name, value) DO UPDATE SET id = excluded.id WHERE document_unique.id = excluded.id"
	// giveUp affects the row of a value, and so ends the unit, if there are loose documents.
	giveUp         = "DELETE FROM document_unique WHERE category = ?0 AND name = ?1 AND value = ?2 AND ((%s) IS NOT NULL OR (%s) IS NOT NULL)"
	giveUpPrepared = "DELETE FROM document_unique WHERE category = $1 AND name = $2 AND value = $3 AND ((%s) IS NOT NULL OR (%s) IS NOT NULL)"
	someLoose      = "SELECT min(indexed) FROM documents WHERE category = %s AND %s AND version > 0"
	selectOwner    = "SELECT u.id, coalesce(d.indexed, 0) FROM document_unique AS u LEFT JOIN documents AS d ON d.category = u.category AND d.id = u.id WHERE u.category = ? AND u.name = ? AND u.value = ?"
)

// loose are the two ranges of documents.indexed of documents that are not entered. Each
// is one range of an index, which is why they are two.
func (d documents[A]) loose() [2]string {
	return [2]string{fmt.Sprintf("indexed < %d", d.indexed), fmt.Sprintf("indexed > %d", d.indexed+1)}
}

// index enters a change in the indexes. What is as it was entered needs no statement.
func (d documents[A]) index(c uow.Change) (statements []uow.Statement, values []string, err error) {
	if len(d.typ.Indexes) == 0 {
		return nil, nil, nil
	}
	values = make([]string, len(d.typ.Indexes))
	if !c.Removed {
		values = d.values(c.Aggregate.(A))
	}
	before, known := make([]string, len(values)), c.Expected == 0
	if s := rootstate.Of(c.Aggregate).Stored; !known && s.Version == c.Expected && s.Indexed == d.indexed && len(s.Values) == len(values) {
		before, known = s.Values, true
	}
	id := c.Aggregate.ID()
	for i, x := range d.typ.Indexes {
		value := values[i]
		if problem := dbtext.KeyProblem(value); problem != "" {
			return nil, nil, &uow.InvalidError{Type: c.Type.Name, ID: id, Err: fmt.Errorf("its %s %.60q %s", x.Name, value, problem)}
		}
		if known && value == before[i] {
			continue
		}
		key := []any{c.Type.Category, x.Name, id, value}
		switch {
		case !x.Unique && value != "":
			statements = append(statements, uow.Statement{Query: documentWrite{bun.SafeQuery(setValue, key...), setPrepared}, Rows: -1})
		case !x.Unique:
			statements = append(statements, uow.Statement{Query: documentWrite{bun.SafeQuery(clearValue, key[:3]...), clearPrepared}, Rows: -1})
		default:
			if !known || before[i] != "" {
				statements = append(statements, uow.Statement{Query: documentWrite{bun.SafeQuery(freeUnique, key...), freePrepared}, Rows: -1})
			}
			if value != "" {
				statements = append(statements, d.take(x.Name, value, id)...)
			}
		}
	}
	return statements, values, nil
}

// take is sent behind what all aggregates of the unit free.
func (d documents[A]) take(name, value, id string) []uow.Statement {
	some := func(category string) (probes []any) {
		for _, loose := range d.loose() {
			probes = append(probes, fmt.Sprintf(someLoose, category, loose))
		}
		return probes
	}
	taken := &TakenError{Type: d.typ.Name, ID: id, Index: name, Value: value}
	return []uow.Statement{{
		Query: documentWrite{bun.SafeQuery(takeUnique, d.typ.Category, name, value, id), takePrepared},
		Rows:  1, Else: &claim{is: taken, examine: func(ctx context.Context) (bool, error) { return d.owner(ctx, taken) }},
		Late: true,
	}, {
		Query: documentWrite{bun.SafeQuery(fmt.Sprintf(giveUp, some("?0")...), d.typ.Category, name, value), fmt.Sprintf(giveUpPrepared, some("$1")...)},
		Rows:  0, Else: &claim{is: &UnindexedError{Type: d.typ.Name}, examine: d.tidy},
		Late: true,
	}}
}

// TakenError is a value of a [domain.Unique] that another aggregate has.
type TakenError struct {
	Type, ID     string
	Index, Value string
	By           string // The identity of the other one. "": it isn't there, or not any more.
}

func (e *TakenError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("repository: %s %q: %s %q belongs to another one of its unit of work, or did until just now", e.Type, e.ID, e.Index, e.Value)
	}
	return fmt.Sprintf("repository: %s %q: %s %q belongs to %q already", e.Type, e.ID, e.Index, e.Value, e.By)
}

// UnindexedError is documents that are not entered in an index, where there are too many
// to be looked through by the way: the index is new.
type UnindexedError struct{ Type string }

func (e *UnindexedError) Error() string {
	return fmt.Sprintf("repository: too many documents of %s are not entered in its indexes yet, so their values are unknown: call Reindex of its repository when the program starts", e.Type)
}

// claim is a unique value that wasn't given.
type claim struct {
	is      error
	examine func(ctx context.Context) (again bool, is error)
}

func (c *claim) Error() string { return c.is.Error() }
func (c *claim) Unwrap() error { return c.is }

// Examine implements [uow.Examined].
func (c *claim) Examine(ctx context.Context) (again bool) {
	again, c.is = c.examine(ctx)
	return again
}

// owner finds out who has a value. What a loose document has it may have had once.
func (d documents[A]) owner(ctx context.Context, e *TakenError) (again bool, is error) {
	var indexed int64
	err := d.provider.Reader().QueryRowContext(ctx, selectOwner, d.typ.Category, e.Index, e.Value).Scan(&e.By, &indexed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, e
	case err != nil:
		return false, errors.Join(e, d.readError(err))
	case indexed == d.indexed || indexed == d.indexed+1:
		return false, e
	}
	if again, is := d.tidy(ctx); again {
		return again, is
	}
	return false, e
}

// tidy enters loose documents that were in the way: without them one can try again.
func (d documents[A]) tidy(ctx context.Context) (again bool, is error) {
	n, _, err := d.reindex(ctx, maxLoose)
	is = &UnindexedError{Type: d.typ.Name}
	if err != nil {
		return false, errors.Join(is, err)
	}
	return n < maxLoose, is
}

// Reindex enters all aggregates of a repository made by [New] that are not entered in
// the indexes of their declaration, and returns how many there were: all of them, when
// an index is new; those that older programs save while both run; else none, which
// takes one look. Until there are only few of them, [Repository.By] and saves that need a
// unique value fail with an [*UnindexedError]: call it when the program starts, before it
// serves, or beside that if such answers will do.
//
// It enters a few hundred in a transaction, in which nobody else can save them; others
// may do the same. What it has done stays done, so that it can be called again after an
// error. A unique value that two aggregates have belongs to one of them; the others
// are errors, [*TakenError], of which it returns ten at most. They are found by the value
// all the same, and can't be saved until one of them has another. Call it outside of
// units of work.
func (r *Repository[A]) Reindex(ctx context.Context) (entered int, err error) {
	d, ok := r.store.(documents[A])
	if !ok || len(d.typ.Indexes) == 0 {
		return 0, nil
	}
	if _, err := uow.From(ctx); !errors.Is(err, uow.ErrNone) {
		return 0, fmt.Errorf("repository: Reindex of %s was called inside a unit of work, which it might wait for; call it outside Do", d.typ.Name)
	}
	// Those of which a value belonged to another one: it may be free now.
	if _, err := d.provider.DB().ExecContext(ctx, "UPDATE documents SET indexed = 0 WHERE category = ? AND indexed = ?", d.typ.Category, d.indexed+1); err != nil {
		return 0, d.readError(err)
	}
	entered, taken, err := d.reindex(ctx, 0)
	if err != nil {
		return entered, err
	}
	var errs []error
	for _, t := range taken[:min(len(taken), 10)] {
		errs = append(errs, t)
	}
	if more := len(taken) - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("repository: and %d more of these", more))
	}
	return entered, errors.Join(errs...)
}

// reindex enters loose documents until there are none, or limit were entered; 0 is no
// limit.
func (d documents[A]) reindex(ctx context.Context, limit int) (n int, taken []*TakenError, err error) {
	for limit == 0 || n < limit {
		// Others may have some of them in hand. When only such are left, it waits for one.
		entered, of, err := d.enter(ctx, entering, " SKIP LOCKED")
		if err == nil && entered == 0 {
			entered, of, err = d.enter(ctx, 1, "")
		}
		n, taken = n+entered, append(taken, of...)
		if err != nil && !d.provider.Retryable(err) || err == nil && entered == 0 {
			return n, taken, err
		}
	}
	return n, taken, nil
}

// enter enters some loose documents, in a transaction in which nobody saves them.
func (d documents[A]) enter(ctx context.Context, limit int, skip string) (n int, taken []*TakenError, err error) {
	var inside error
	err = dbtx.Run(ctx, d.provider.DB(), func(tx bun.Tx) error {
		n, taken, inside = d.enterLoose(ctx, tx, limit, skip)
		return inside
	})
	if err != nil && inside == nil {
		err = d.readError(err)
	}
	if err != nil {
		return 0, nil, err
	}
	return n, taken, nil
}

func (d documents[A]) enterLoose(ctx context.Context, tx bun.Tx, limit int, skip string) (n int, taken []*TakenError, err error) {
	lock := ""
	if tx.Dialect().Name() == dialect.PG {
		lock = " FOR NO KEY UPDATE" + skip
	}
	var found []stored[A]
	for _, loose := range d.loose() {
		some, err := d.query(ctx, tx, "SELECT id, version, state, state_version, indexed FROM documents WHERE category = ? AND "+loose+" AND version > 0 ORDER BY indexed LIMIT ?"+lock,
			d.typ.Category, limit-len(found))
		if err != nil {
			return 0, nil, err
		}
		found = append(found, some...)
	}
	if len(found) == 0 {
		return 0, nil, nil
	}
	for i, x := range d.typ.Indexes {
		some, err := d.enterIn(ctx, tx, i, x, found)
		if err != nil {
			return 0, nil, d.readError(err)
		}
		taken = append(taken, some...)
	}
	marked := map[string]bool{}
	for _, t := range taken {
		marked[t.ID] = true
	}
	ids := map[bool][]string{}
	for _, s := range found {
		ids[marked[s.id]] = append(ids[marked[s.id]], s.id)
	}
	for mark, ids := range ids {
		indexed := d.indexed
		if mark {
			indexed++
		}
		if _, err := tx.ExecContext(ctx, "UPDATE documents SET indexed = ? WHERE category = ? AND id IN (?)", indexed, d.typ.Category, bun.List(ids)); err != nil {
			return 0, nil, d.readError(err)
		}
	}
	return len(found), taken, nil
}

// indexRow is one of document_index or of document_unique.
type indexRow struct {
	bun.BaseModel `bun:"alias:r"`

	Category, Name, ID, Value string
}

// enterIn enters documents in one index, in place of what they had there.
func (d documents[A]) enterIn(ctx context.Context, tx bun.Tx, i int, x domain.DocumentIndex, found []stored[A]) (taken []*TakenError, err error) {
	table := "document_index"
	if x.Unique {
		table = "document_unique"
	}
	var ids, values []string
	var rows []indexRow
	for _, s := range found {
		ids = append(ids, s.id)
		if s.removed {
			continue
		}
		value := rootstate.Of(s.aggregate).Stored.Values[i]
		if problem := dbtext.KeyProblem(value); problem != "" {
			return nil, fmt.Errorf("%s %q: its %s %.60q %s", d.typ.Name, s.id, x.Name, value, problem)
		}
		if value != "" {
			values = append(values, value)
			rows = append(rows, indexRow{Category: d.typ.Category, Name: x.Name, ID: s.id, Value: value})
		}
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM ? WHERE category = ? AND name = ? AND id IN (?)", bun.Ident(table), d.typ.Category, x.Name, bun.List(ids)); err != nil || len(rows) == 0 {
		return nil, err
	}
	if _, err := tx.NewInsert().Model(&rows).ModelTableExpr(table).On("CONFLICT DO NOTHING").Returning("NULL").Exec(ctx); err != nil || !x.Unique {
		return nil, err
	}
	var owners []indexRow
	err = tx.NewSelect().Model(&owners).ModelTableExpr(table+" AS r").Where("category = ? AND name = ? AND value IN (?)", d.typ.Category, x.Name, bun.List(values)).Scan(ctx)
	by := map[string]string{}
	for _, o := range owners {
		by[o.Value] = o.ID
	}
	for _, r := range rows {
		if by[r.Value] != r.ID {
			taken = append(taken, &TakenError{Type: d.typ.Name, ID: r.ID, Index: x.Name, Value: r.Value, By: by[r.Value]})
		}
	}
	return taken, err
}
