package dbtext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtext"
)

func TestCheckTransaction(t *testing.T) {
	for query, want := range map[string]string{
		"BEGIN":                                 "BEGIN",
		"begin immediate":                       "BEGIN",
		" ;\n/* so */ -- and so\n commit;":      "COMMIT",
		"End":                                   "END",
		"ABORT":                                 "ABORT",
		"START TRANSACTION READ ONLY":           "START TRANSACTION",
		"PREPARE TRANSACTION 'x'":               "PREPARE TRANSACTION",
		"ROLLBACK":                              "ROLLBACK",
		"ROLLBACK AND CHAIN":                    "ROLLBACK",
		"rollback work":                         "ROLLBACK",
		"ROLLBACK TRANSACTION TO SAVEPOINT x":   "",
		"rollback to x":                         "",
		"SAVEPOINT x":                           "",
		"RELEASE x":                             "",
		"PREPARE x AS SELECT 1":                 "",
		"INSERT INTO t VALUES ('; COMMIT')":     "",
		"SELECT 1 /* ; COMMIT */":               "",
		"/* COMMIT":                             "",
		"":                                      "",
		"begin_x":                               "",
		"commits":                               "",
		"(SELECT 1)":                            "",
		"UPDATE t SET a = 1 -- ; COMMIT":        "",
		"WITH begin AS (SELECT 1) SELECT 1":     "",
		"CREATE FUNCTION f() BEGIN ATOMIC; END": "",
	} {
		err := dbtext.CheckTransaction(query)
		if want == "" {
			require.NoError(t, err, query)
			continue
		}
		refused, ok := err.(*dbtext.TransactionError) //nolint:errorlint // It is the error itself.
		require.True(t, ok, query)
		require.Equal(t, want, refused.Statement)
	}
}
