package uow

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
)

func TestExecution_Prepared(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	for name, test := range map[string]struct {
		query string
		args  []any
		want  string
		as    []any
	}{
		"plain":    {"DELETE FROM t", nil, "DELETE FROM t", []any{}},
		"values":   {"INSERT INTO t VALUES (?, ?, ?::int, ?)", []any{"a", []byte("b"), 7, nil}, "INSERT INTO t VALUES ($1, $2, $3::int, $4)", []any{"a", []byte("b"), "7", nil}},
		"others":   {"f(?,?,?,?)", []any{true, int64(-1), 1.5, at}, "f($1,$2,$3,$4)", []any{"true", "-1", "1.5", "2026-01-02T02:04:05.000006Z"}},
		"valuers":  {"f(?,?)", []any{sql.NullString{}, sql.NullInt64{Int64: 3, Valid: true}}, "f($1,$2)", []any{nil, "3"}},
		"text":     {"SET a = 'why?' WHERE b = ?", []any{1}, "", nil},
		"operator": {"WHERE a ?? ?", []any{1}, "", nil},
		"number":   {"VALUES (?0, ?0)", []any{1}, "", nil},
		"query":    {"IN (?)", []any{bun.List([]int{1, 2})}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, as, err := execution{bun.SafeQuery(test.query, test.args...)}.Prepared()
			require.NoError(t, err)
			require.Equal(t, test.want, got)
			require.Equal(t, test.as, as)
		})
	}
	_, _, err := execution{bun.SafeQuery("VALUES (?, ?)", 1)}.Prepared()
	require.ErrorContains(t, err, `1 arguments for 2 times ? in "VALUES (?, ?)"`)
}
