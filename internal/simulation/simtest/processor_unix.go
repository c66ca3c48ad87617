//go:build unix

package simtest

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Processor is the processor's time that this process has had.
func Processor(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
