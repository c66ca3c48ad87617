// Package dbtext knows which texts a database can keep, and finds what bun couldn't
// write as SQL: it puts its own error where the value should be.
package dbtext

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/uptrace/bun/schema"
)

// MaxKey is how long what is looked up by may be, in bytes. An index of PostgreSQL has
// no room for much more.
const MaxKey = 1024

// KeyProblem says why a text can't be a key, or nothing.
func KeyProblem(s string) string {
	if len(s) > MaxKey {
		return fmt.Sprintf("has %d bytes: use one of %d at most", len(s), MaxKey)
	}
	if Problem(s) != "" {
		return "is not a text that a database can store: leave out NUL bytes and what is not UTF-8"
	}
	return ""
}

// Problem says why a text can't be stored, or nothing.
func Problem(s string) string {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return "has a NUL byte, which no text can have in a database: leave it out, or use bytes (bytea, BLOB)"
	case !utf8.ValidString(s):
		return "is not UTF-8, which a text has to be in a database: correct it, or use bytes (bytea, BLOB)"
	}
	return ""
}

// failure is how bun begins an error that it writes instead of a value, and
// replacement what it writes instead of what is not UTF-8.
var failure, replacement = []byte("?!("), []byte("\uFFFD")

// Suspicious says whether there may be such in SQL. Legitimate texts can have it too.
func Suspicious(sql []byte) bool {
	return bytes.Contains(sql, failure) || bytes.Contains(sql, replacement)
}

// Value says why a value can't be written as SQL, or nothing. write appends it.
func Value(value any, write func(b []byte) []byte) (problem string) {
	if s, ok := value.(string); ok {
		return Problem(s)
	}
	defer func() {
		if recover() != nil { // bun has nothing to write such a type with
			problem = fmt.Sprintf("is a %T, which can't be written as SQL: give it another type, or a Value method", value)
		}
	}()
	quoted := false
	sql := write(nil)
	for i, c := range sql {
		switch {
		case c == '\'':
			quoted = !quoted
		case !quoted && bytes.HasPrefix(sql[i:], failure):
			text, _, _ := strings.Cut(string(sql[i+len(failure):]), ")")
			return fmt.Sprintf("can't be written as SQL: %s", text)
		}
	}
	return ""
}

// Argument is Value for an argument of a query.
func Argument(gen schema.QueryGen, arg any) string {
	return Value(arg, func(b []byte) []byte {
		if q, ok := arg.(schema.QueryAppender); ok {
			b, err := q.AppendQuery(gen, b)
			if err != nil {
				return fmt.Appendf(b, "%s%v)", failure, err)
			}
			return b
		}
		return gen.Append(b, arg)
	})
}
