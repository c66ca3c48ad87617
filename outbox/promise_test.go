package outbox_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

func TestPromiseOf(t *testing.T) {
	full := map[string]string{"waybill-source": "s", "waybill-low": "1700000000123", "waybill-at": "1700000001000"}
	p, ok := outbox.PromiseOf(full)
	require.True(t, ok)
	require.Equal(t, outbox.Promise{Source: "s", Settled: time.UnixMilli(1700000000123).UTC(), AsOf: time.UnixMilli(1700000001000).UTC()}, p)
	// S4: of a source that says nothing sound, that it has sent something is all that is known.
	for name, bad := range map[string][]string{
		"waybill-low": {"yesterday", "", "-1", "0", "9223372036854775807", "-9223372036854775808", "253402300800000", "1e3"},
		"waybill-at":  {"", "9223372036854775807", "0"},
	} {
		for _, value := range bad {
			other := maps.Clone(full)
			other[name] = value
			p, ok := outbox.PromiseOf(other)
			require.True(t, ok, "%s %s", name, value)
			require.Equal(t, outbox.Promise{Source: "s"}, p, "%s %s", name, value)
		}
	}
	for _, nobody := range []string{"", strings.Repeat("s", 256)} {
		full["waybill-source"] = nobody
		_, ok := outbox.PromiseOf(full)
		require.False(t, ok)
	}
	p, ok = outbox.PromiseOf(map[string]string{"waybill-source": "s", "waybill-low": "1700000009999", "waybill-at": "1700000001000"})
	require.True(t, ok)
	require.Equal(t, p.AsOf, p.Settled, "nothing that is to come is settled")
}
