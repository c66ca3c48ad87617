package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
	"github.com/waybill-go/waybill/uow/uowtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) uow.Provider {
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestProvider(t *testing.T) {
	uowtest.Run(t, uowtest.Harness{
		Open:  func(t *testing.T) uow.Provider { return open(t, filepath.Join(t.TempDir(), "test.db")) },
		InUse: func(p uow.Provider) int { return p.DB().Stats().InUse + p.Reader().Stats().InUse },
	})
}
