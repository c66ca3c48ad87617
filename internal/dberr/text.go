package dberr

import (
	"strings"
	"unicode/utf8"
)

// MaxText is how much of an error's text is kept, in characters.
const MaxText = 2048

// Clean is s with U+FFFD for what PostgreSQL refuses in a text: a NUL byte, and what is
// not UTF-8.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Clip is s as a column for errors keeps it: clean, and of at most [MaxText] characters.
func Clip(s string) string {
	s = Clean(s)
	if utf8.RuneCountInString(s) > MaxText {
		s = string([]rune(s)[:MaxText-1]) + "…"
	}
	return s
}
