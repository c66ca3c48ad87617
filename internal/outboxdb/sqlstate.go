package outboxdb

import (
	"errors"
	"slices"
)

const sqliteBusy, sqliteLocked = 5, 6

// sqlState is PostgreSQL's code of an error; "" of any other.
func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// ended says whether PostgreSQL ended a statement because it took too long.
func ended(err error) bool { return sqlState(err) == "57014" }

// lockTimeout says whether PostgreSQL gave up waiting for a lock.
func lockTimeout(err error) bool { return sqlState(err) == "55P03" }

// inTheWay says whether a transaction failed because of another one: a deadlock, a
// lock that was not to be had, a busy file.
func inTheWay(err error) bool {
	if state := sqlState(err); state != "" {
		return slices.Contains([]string{"40001", "40P01", "55P03"}, state)
	}
	var code interface{ Code() int }
	return errors.As(err, &code) && (code.Code()&0xff == sqliteBusy || code.Code()&0xff == sqliteLocked)
}
