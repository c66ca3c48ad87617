package config

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// A variable that was meant for a key and is misspelled is told of; one of another program isn't.
func TestLoad_VariablesThatSetNothingAreToldOf(t *testing.T) {
	for name, closest := range map[string]string{
		"WAYBILL_OUTBOX_LESE":                "WAYBILL_OUTBOX_LEASE",
		"WAYBILL_OUTBX_LEASE":                "WAYBILL_OUTBOX_LEASE",
		"WAYBILL_PROVIDERS_DEFAULT_POOL_MAC": "WAYBILL_PROVIDERS_DEFAULT_POOL_MAX",
		"WAYBILL_PROVIDERS_DEFOULT_PATH":     "WAYBILL_PROVIDERS_DEFAULT_PATH",
		"WAYBILL_BROKERS_PARTNER_ADRESSES":   "WAYBILL_BROKERS_PARTNER_ADDRESSES",
		"WAYBILL_OUTBOX_LEASE":               "",
		"WAYBILL_PROVIDERS_DEFAULT_POOL_MAX": "",
		"WAYBILL_BROKERS_PARTNER_ADDRESSES":  "",
		"WAYBILL_POSTGRES":                   "",
		"OUTBOX_LEASE":                       "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "30s")
			if name == "WAYBILL_PROVIDERS_DEFAULT_POOL_MAX" {
				t.Setenv(name, "3")
			}
			var log bytes.Buffer
			w := newWorld()
			w.Logger = slog.New(slog.NewTextHandler(&log, nil))
			_, err := Load(t.Context(), write(t, smallest), ordering, w.Kinds)
			require.NoError(t, err)
			if closest == "" {
				require.NotContains(t, log.String(), "variable="+name+" ")
				return
			}
			require.Contains(t, log.String(), "sets nothing")
			require.Contains(t, log.String(), "variable="+name+" closest="+closest)
		})
	}
}

// Brokers with equal settings share a connection, and the keys of each have their variables.
func TestLoad_VariablesOfABrokerThatSharesAConnection(t *testing.T) {
	t.Setenv("WAYBILL_BROKERS_DEFAULT_ADDRESSES", "a:1")
	t.Setenv("WAYBILL_BROKERS_PARTNER_ADDRESSES", "a:1")
	var log bytes.Buffer
	w := newWorld()
	w.Logger = slog.New(slog.NewTextHandler(&log, nil))
	_, err := Load(t.Context(), write(t, smallest), ordering, w.Kinds)
	require.NoError(t, err)
	require.Len(t, w.brokers, 1)
	require.NotContains(t, log.String(), "variable=WAYBILL_BROKERS_")
}
