package dbtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// PostgreSQL reads the hours of any duration apart from its seconds, of which it can't
// read so many before version 15.
func TestIn_LongDurations(t *testing.T) {
	for after, want := range map[time.Duration]string{
		0:                        "+0 hours +0.000 seconds",
		1500 * time.Millisecond:  "+0 hours +1.500 seconds",
		-90*time.Minute - 250000: "-1 hours -1800.000 seconds",
		1 << 62:                  "+1281023 hours +3218.427 seconds",
		-1 << 62:                 "-1281023 hours -3218.427 seconds",
	} {
		require.Equal(t, "clock_timestamp() + interval '"+want+"'", dbtime.In(pgdialect.New(), after))
	}
	require.Equal(t, "strftime('%Y-%m-%dT%H:%M:%fZ','now','-5400.000 seconds')", dbtime.In(sqlitedialect.New(), -90*time.Minute))
}
