// Package dberr tells errors of a database that pass from those that somebody has to
// do something about.
package dberr

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Denied is PostgreSQL's code for a right that is missing.
const Denied = "42501"

// Limited is PostgreSQL's code for a limit of its configuration, such as temp_file_limit.
const Limited = "53400"

// Misfit is the code of [ErrMisfit].
const Misfit = "configuration"

// ErrMisfit is what errors are that say that this process has another configuration than
// the database has for all of them: nothing that it writes can be stored.
var ErrMisfit = errors.New("the configuration is not the database's")

// CodeOf is what the database calls an error: PostgreSQL's SQLSTATE, or SQLite's
// result code, as in "sqlite 8". It is empty if no database said it, nor the
// configuration is to blame.
func CodeOf(err error) string {
	if errors.Is(err, ErrMisfit) {
		return Misfit
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	if result, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		return sqlite + strconv.Itoa(result.Code()&0xff) // the rest says which kind of it
	}
	return ""
}

const sqlite = "sqlite "

// Missing adds what helps to an error of a query to which a table was missing.
func Missing(err error) error {
	if code := CodeOf(err); code == "42P01" || code == sqlite+"1" && strings.Contains(err.Error(), "no such table") {
		return fmt.Errorf("a table is missing; run engine.Migrate or `waybill migrate` for Waybill's own, and your migrations for yours: %w", err)
	}
	return err
}

// lasting are codes, or their beginnings, of what is so until somebody changes it.
var lasting = []string{
	"42",             // a right, a table or a column is missing
	"25006",          // read-only
	"3F", "3D", "28", // no such schema, no such database, not let in
	"53100", "58", "XX001", "XX002", // disk full, the server's files, damage
	Misfit,
	sqlite + "1",                                                              // a table or a column is missing
	sqlite + "3",                                                              // no right
	sqlite + "8",                                                              // read-only
	sqlite + "11", sqlite + "13", sqlite + "14", sqlite + "23", sqlite + "26", // damage, disk full, no file, not allowed, no database
}

// Lasts says that what a code stands for doesn't pass by itself.
func Lasts(code string) bool {
	for _, l := range lasting {
		if code == l || !strings.HasPrefix(l, sqlite) && strings.HasPrefix(code, l) {
			return true
		}
	}
	return false
}

// Remedy says what helps against what a code stands for.
func Remedy(code string) string {
	switch code {
	case Misfit:
		return "Give this process the configuration that the database has, and restart it, or end it: others that have it go on with its work."
	case Denied:
		return "`waybill doctor` says which right the role lacks, and the GRANT that helps."
	case "25006", sqlite + "8":
		return "The database can't be written to: lead the connection to the primary, or see who made the database, the role or the file read-only."
	case sqlite + "5":
		return "Another process has the file locked for writing: `waybill doctor` says which. End its transaction."
	case sqlite + "10":
		return "The file can't be read or written: see what the system's log says of its disk, and whether a quota or a limit on the size of files (ulimit -f) is reached."
	case "53100", sqlite + "13":
		return "The disk is full: make room."
	case Limited:
		return "A limit of the server's configuration is reached: raise the one that the error names. If it is temp_file_limit, more memory helps, too (ALTER ROLE … SET work_mem = '4MB', for new connections)."
	}
	if strings.HasPrefix(code, "28") {
		return "PostgreSQL lets no new connection of this user in: give this process the password or certificate that is taken now and restart it, or correct pg_hba.conf or the role."
	}
	if Lasts(code) {
		return "`waybill doctor` says what is missing or damaged."
	}
	return "The log has more; `waybill doctor` looks for what keeps a database from answering."
}
