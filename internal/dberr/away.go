package dberr

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
)

// Away says that err is a database that doesn't answer, and may answer later.
func Away(err error) bool {
	if state, ok := errors.AsType[interface {
		error
		SQLState() string // an answer of PostgreSQL
	}](err); ok {
		// Connection lost, shutting down or starting up, no resources left.
		return slices.ContainsFunc([]string{"08", "57P", "53"}, func(class string) bool { return strings.HasPrefix(state.SQLState(), class) })
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, context.DeadlineExceeded)
}
