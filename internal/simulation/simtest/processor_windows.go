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
	self, err := syscall.GetCurrentProcess()
	require.NoError(t, err)
	var created, ended, kernel, user syscall.Filetime
	require.NoError(t, syscall.GetProcessTimes(self, &created, &ended, &kernel, &user))
	of := func(f syscall.Filetime) time.Duration { // in units of 100 ns
		return 100 * time.Duration(uint64(f.HighDateTime)<<32|uint64(f.LowDateTime))
	}
	return of(kernel) + of(user)
}
