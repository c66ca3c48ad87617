package dbtext

import (
	"fmt"
	"strings"
)

// TransactionError is a statement that would begin or end the transaction that it is part of.
// What belongs together would be torn apart, or be lost without an error.
type TransactionError struct{ Statement string }

func (e *TransactionError) Error() string {
	return fmt.Sprintf("%s is no statement for a unit of work, whose transaction begins by itself, commits when the function given to Do"+
		" returns nil, and is rolled back when that returns an error: take it out, or use SAVEPOINT for a part of it", e.Statement)
}

// CheckTransaction returns a *[TransactionError] if a query would begin or end a transaction.
// It looks at the first words: that is how people write it by mistake.
func CheckTransaction(query string) error {
	word, rest := firstWord(query)
	switch word {
	case "BEGIN", "COMMIT", "END", "ABORT":
	case "START", "PREPARE":
		next, _ := firstWord(rest)
		if next != "TRANSACTION" {
			return nil
		}
		word += " " + next
	case "ROLLBACK":
		next, rest := firstWord(rest)
		if next == "WORK" || next == "TRANSACTION" {
			next, _ = firstWord(rest)
		}
		if next == "TO" { // a savepoint
			return nil
		}
	default:
		return nil
	}
	return &TransactionError{word}
}

// firstWord is the first word of SQL, in capital letters, behind white space, comments and
// empty statements; none if something else comes first.
func firstWord(query string) (word, rest string) {
	for {
		query = strings.TrimLeft(query, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(query, "--"):
			_, query, _ = strings.Cut(query, "\n")
		case strings.HasPrefix(query, "/*"):
			_, query, _ = strings.Cut(query[2:], "*/")
		default:
			end := 0
			for end < len(query) && (query[end]|0x20 >= 'a' && query[end]|0x20 <= 'z' || query[end] == '_') {
				end++
			}
			if end > len("TRANSACTION") {
				return "", ""
			}
			return strings.ToUpper(query[:end]), query[end:]
		}
	}
}
