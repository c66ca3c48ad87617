package waittest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
)

func TestSet(t *testing.T) {
	now := time.Now()
	for _, by := range []time.Duration{-2 * time.Hour, 0, 3 * time.Hour} {
		at := waittest.Set(now, by)
		require.Equal(t, now.Unix()+int64(by/time.Second), at.Unix())
		require.Equal(t, now.Nanosecond(), at.Nanosecond())
		require.Zero(t, at.Sub(now), "the monotonic clock goes on")
	}
	require.Panics(t, func() { waittest.Set(time.Unix(1, 0), time.Second) })
}
