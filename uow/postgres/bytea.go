package postgres

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
)

// byteaCodec reads both texts of a bytea. Which of them the server sends is bytea_output's
// to say, of a role or database, and PgBouncer refuses it at the start of a connection; pgx
// reads hex only.
type byteaCodec struct{ pgtype.ByteaCodec }

func (c byteaCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	plan := c.ByteaCodec.PlanScan(m, oid, format, target)
	if plan == nil || format != pgtype.TextFormatCode {
		return plan
	}
	return byteaText{plan}
}

type byteaText struct{ hex pgtype.ScanPlan }

func (t byteaText) Scan(src []byte, target any) error {
	if src == nil || bytes.HasPrefix(src, []byte(`\x`)) { // An escaped text has \\x there.
		return t.hex.Scan(src, target)
	}
	b, err := unescaped(src)
	if err != nil {
		return err
	}
	return t.hex.Scan(hex.AppendEncode([]byte(`\x`), b), target)
}

// unescaped reads what bytea_output = escape writes: \\ is a backslash, \ooo a byte in octal,
// all else itself.
func unescaped(text []byte) ([]byte, error) {
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		rest := text[i+1:]
		switch {
		case text[i] != '\\':
			b = append(b, text[i])
		case bytes.HasPrefix(rest, []byte(`\`)):
			b = append(b, '\\')
			i++
		case len(rest) >= 3:
			n, err := strconv.ParseUint(string(rest[:3]), 8, 8)
			if err != nil {
				return nil, fmt.Errorf("postgres: read a bytea: %w", err)
			}
			b = append(b, byte(n))
			i += 3
		default:
			return nil, errors.New("postgres: read a bytea: it ends within an escape")
		}
	}
	return b, nil
}
