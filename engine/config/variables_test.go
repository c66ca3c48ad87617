package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/uow"
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

// A variable without a value takes away what the file says, where nobody sees it: the error names it.
func TestLoad_VariablesWithoutAValueAreNamed(t *testing.T) {
	for name, wrong := range map[string]string{
		"WAYBILL_DOMAIN":                    "domain is missing",
		"WAYBILL_PROVIDERS_DEFAULT_PATH":    "providers.default: nothing to open",
		"WAYBILL_BROKERS_DEFAULT_ADDRESSES": "brokers.default: nothing to open",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if wrong != "domain is missing" {
				w.Kinds.Providers["sqlite"] = func(_ context.Context, _ string, s broker.Settings) (uow.Provider, error) {
					return nil, errors.Join(s.Decode(&struct{ Path string }{}), errors.New("nothing to open"))
				}
				w.Kinds.Brokers["memory"] = func(_ context.Context, s broker.Settings) (broker.Broker, error) {
					return nil, errors.Join(s.Decode(&struct{ Addresses []string }{}), errors.New("nothing to open"))
				}
			}
			file := write(t, "domain: ordering\nproviders: {default: {dialect: sqlite, path: x}}\nbrokers: {default: {kind: memory, addresses: [a]}}\n")
			t.Setenv(name, "")
			_, err := Load(t.Context(), file, ordering, w.Kinds)
			require.ErrorContains(t, err, wrong)
			require.Regexp(t, wrong+".*; set without a value, which overrides the file: "+name+"(\n|$)", err.Error())
		})
	}
}

// Where the variable is that of the kind, it is the place of the mistake.
func TestParse_AKindThatAVariableTakesAway(t *testing.T) {
	t.Setenv("WAYBILL_PROVIDERS_DEFAULT_DIALECT", "")
	t.Setenv("WAYBILL_BROKERS_DEFAULT_KIND", "")
	_, err := Parse(write(t, smallest))
	require.ErrorContains(t, err, "WAYBILL_PROVIDERS_DEFAULT_DIALECT: providers.default has no dialect")
	require.ErrorContains(t, err, "WAYBILL_BROKERS_DEFAULT_KIND: brokers.default has no kind")
}
