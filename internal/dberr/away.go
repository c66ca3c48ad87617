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

// unfit are codes, or their beginnings, of a database that takes nothing from anybody.
var unfit = []string{
	"08", "57P", "53300", // connection lost, shutting down or starting up, no connection left
	"28",                               // not let in, while connections of before go on: the password was changed, or who may connect
	"53100", "58000", "58030", "25006", // disk full, the server's files, read-only as a standby is
	sqlite + "5", sqlite + "8", sqlite + "10", sqlite + "13", // locked by another process, read-only, the file, disk full
	Misfit,
}

// Unfit says that err is of the database's state, and not of what was asked: the same
// succeeds when the database is well again.
func Unfit(err error) bool {
	code := CodeOf(err)
	return slices.ContainsFunc(unfit, func(u string) bool {
		return code == u || !strings.HasPrefix(u, sqlite) && strings.HasPrefix(code, u)
	})
}

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
