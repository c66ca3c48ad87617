package outboxdb

import "errors"

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
