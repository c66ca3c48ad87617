package postgres_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// openThrough opens a provider whose connections can be broken.
func openThrough(t *testing.T, change ...func(*postgres.Config)) (uow.Provider, *netfault.Relay) {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	x, err := netfault.New(t.Context(), u.Host)
	require.NoError(t, err)
	t.Cleanup(x.Close)
	u.Host = x.Address
	p := open(t, append([]func(*postgres.Config){func(c *postgres.Config) { c.DSN = u.String() }}, change...)...)
	return p, x
}
