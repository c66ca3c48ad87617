package dberr

import "strings"

// permanent are codes, or their beginnings, of what a statement asks that no database
// will ever do.
var permanent = []string{
	"0A", "22", "23", "54", // not supported, no such value, a constraint, a limit
	sqlite + "18", sqlite + "19", sqlite + "20", // too big, a constraint, the wrong type
}

// Permanent says that trying the same again can't help, whatever somebody does about
// the database.
func Permanent(err error) bool {
	code := CodeOf(err)
	for _, p := range permanent {
		if code == p || !strings.HasPrefix(p, sqlite) && code != "" && strings.HasPrefix(code, p) {
			return true
		}
	}
	return false
}
