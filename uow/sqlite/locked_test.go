package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Who finds the file locked by somebody else is told so, and by whom, whether it asks for the
// lock itself or waits behind one that does. It is the fault of no unit of work, and of no message.
func TestWriter_SaysWhoHasTheFileLocked(t *testing.T) {
	path := t.TempDir() + "/a.db"
	p, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	other, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	write := func(ctx context.Context) error {
		_, err := p.DB().ExecContext(ctx, "INSERT INTO things (name) VALUES ('a')")
		return err
	}
	_, err = p.DB().ExecContext(t.Context(), "CREATE TABLE things (name TEXT)")
	require.NoError(t, err)
	_, err = p.DB().ExecContext(t.Context(), "PRAGMA busy_timeout = 100")
	require.NoError(t, err)

	tx, err := other.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	check := func(err error) {
		t.Helper()
		who := "another process"
		if runtime.GOOS == "linux" {
			who = fmt.Sprintf("process %d (", os.Getpid())
		}
		require.ErrorContains(t, err, `sqlite: provider "default": `+who)
		require.ErrorContains(t, err, "has "+path+" locked for writing, and nobody else can write: end its transaction, or ")
		require.True(t, dberr.Unfit(err))
		require.True(t, p.Retryable(err))
	}
	_, err = p.DB().BeginTx(t.Context(), nil)
	check(err)
	check(p.DB().QueryRowContext(t.Context(), "INSERT INTO things (name) VALUES ('a') RETURNING name").Scan(new(string)))

	// One is inside most of the time and waits for the lock, the other one at the gate.
	sqlite.SetWriterTimeout(p, 10*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var inside sync.WaitGroup
	inside.Go(func() {
		for ctx.Err() == nil {
			_ = write(ctx)
		}
	})
	for range 5 {
		check(write(t.Context()))
	}
	cancel()
	inside.Wait()
	require.NoError(t, tx.Rollback())
	require.NoError(t, write(t.Context()))
}
