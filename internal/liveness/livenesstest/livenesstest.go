// Package livenesstest has names of processes for tests on Linux.
package livenesstest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/liveness"
)

// Alive names a worker of this process.
func Alive() string { return liveness.Here().Name() + "-1" }

// Dead names a worker of a process that was on this host and has ended: its number is
// this one's now, which started later.
func Dead(t testing.TB) string {
	t.Helper()
	parts := strings.Split(liveness.Here().Name(), ".")
	began := &parts[len(parts)-2]
	ticks, err := strconv.ParseUint(*began, 10, 64)
	require.NoError(t, err)
	*began = strconv.FormatUint(ticks-1, 10)
	name := strings.Join(parts, ".") + "-1"
	require.Equal(t, liveness.Dead, liveness.Here().State(name))
	return name
}
