package repository

import (
	"database/sql"
	"errors"
	"strings"

	"github.com/waybill-go/waybill/uow"
)

// What became of a unit of work whose COMMIT was not answered?
//
// Every row says which unit wrote its version. That alone tells only whether the
// unit has committed: its transaction may still be waiting somewhere in the
// server, or its request be on the way to it, and be executed after somebody has
// looked. So to look is to write: the unit is refused on the row that it would
// have to write, under the guard that all its statements have.
//
//   - The transaction is under way: it holds the row, or the key of the row that
//     it has inserted. The refusal waits for its end, and then either finds the
//     version written, or succeeds.
//   - The request arrives later: it finds the version that it expects, and itself
//     among the refused. Its statement affects no row, and the transaction fails.
//   - Others are not refused. Who writes the next version takes the refusal away,
//     and that version keeps the late one out.
//
// This holds at every isolation level of the late transaction: to write a row
// that was changed since its snapshot is a serialization failure above READ
// COMMITTED. Refusals stand behind the writer, each behind a blank, because
// several units can be lost on one version.

const (
	refuseInsert = "INSERT INTO documents (category, id, version, unit) VALUES (?, ?, 0, ?)" +
		" ON CONFLICT (category, id) DO UPDATE SET unit = documents.unit || excluded.unit WHERE documents.version = 0"
	refuseUpdate = "UPDATE documents SET unit = unit || ? WHERE category = ? AND id = ? AND version = ?"
	selectWriter = "SELECT version, unit FROM documents WHERE category = ? AND id = ?"
)

// refusal is what is appended to a row's unit.
func refusal(c uow.Change) string { return " " + c.Unit }

// refusing is the pattern of a row's unit on which c's unit is refused.
func refusing(c uow.Change) string { return "%" + refusal(c) + "%" }

// affected says whether a statement affected a row.
func affected(r sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n > 0, err
}

// judge judges c by a row of version and unit.
func judge(c uow.Change, scan func(into ...any) error) (uow.Outcome, error) {
	var version int64
	var unit string
	err := scan(&version, &unit)
	if errors.Is(err, sql.ErrNoRows) { // somebody has deleted it by hand
		return uow.Overwritten, nil
	}
	writer, _, _ := strings.Cut(unit, " ")
	return c.Outcome(version, writer), err
}
