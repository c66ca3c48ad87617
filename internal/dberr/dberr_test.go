package dberr_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func TestLasts(t *testing.T) {
	for code, lasts := range map[string]bool{
		"42501": true, "42P01": true, "25006": true, "28P01": true, "53100": true, "3F000": true, dberr.Misfit: true,
		"40001": false, "40P01": false, "55P03": false, "57014": false, "08006": false, "53300": false, "": false,
		"sqlite 1": true, "sqlite 8": true, "sqlite 13": true, "sqlite 5": false, "sqlite 6": false, "sqlite 10": false,
	} {
		require.Equal(t, lasts, dberr.Lasts(code), code)
	}
}

func TestUnfit(t *testing.T) {
	for code, unfit := range map[string]bool{
		"53100": true, "25006": true, "57P01": true, "28P01": true, "28000": true, "08006": true, "53300": true, "58030": true,
		"53200": false, "53400": false, "58P01": false, "42501": false, "23505": false, "40001": false, "57014": false,
	} {
		require.Equal(t, unfit, dberr.Unfit(fmt.Errorf("handle: %w", &pgconn.PgError{Code: code})), code)
	}
	require.False(t, dberr.Unfit(errors.New("no leader")))
	require.True(t, dberr.Unfit(fmt.Errorf("handle: %w", dberr.ErrMisfit)))
}

func TestCodeOf(t *testing.T) {
	require.Equal(t, dberr.Denied, dberr.CodeOf(fmt.Errorf("claim: %w", &pgconn.PgError{Code: "42501"})))
	require.Equal(t, dberr.Misfit, dberr.CodeOf(fmt.Errorf("save: %w", dberr.ErrMisfit)))
	require.Empty(t, dberr.CodeOf(errors.New("no leader")))

	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: t.TempDir() + "/a.db"})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = db.DB().ExecContext(t.Context(), "INSERT INTO nowhere VALUES (1)")
	require.Equal(t, "sqlite 1", dberr.CodeOf(err))
	_, err = db.Reader().ExecContext(t.Context(), "CREATE TABLE t (n int)")
	require.Equal(t, "sqlite 8", dberr.CodeOf(err))
}

func TestRemedy(t *testing.T) {
	for code, what := range map[string]string{"42501": "GRANT", "42P01": "is missing", "25006": "primary", "28P01": "password", "sqlite 13": "room", "sqlite 5": "locked for writing", "sqlite 10": "ulimit -f", "53400": "temp_file_limit", "40001": "log", dberr.Misfit: "restart it"} {
		require.Contains(t, dberr.Remedy(code), what)
	}
}
