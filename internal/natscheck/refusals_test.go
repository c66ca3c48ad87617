package natscheck_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/natscheck"
	"github.com/waybill-go/waybill/internal/natstest"
)

// The guide's users are told what the server refuses them, at once, as it never answers;
// the one for doctor is refused nothing.
func TestLook_SaysWhatTheServerRefuses(t *testing.T) {
	halfway := `{ user: halfway, password: change-me, permissions: { publish: ["$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES"], subscribe: "_INBOX.>" }}` + "\n  ]\n}\n"
	url := natstest.Serve(t, strings.Replace(natstest.Guide(t), "  ]\n}\n", halfway, 1))
	needs := natscheck.Needs{Contexts: []string{"ordering"}}

	nc := connect(t, url("ordering"))
	js, err := nc.JetStream()
	require.NoError(t, err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "ordering_order", Subjects: []string{"ordering.order"}})
	require.NoError(t, err)
	all := natscheck.Look(t.Context(), nc, needs)
	require.Len(t, all, 1)
	require.Equal(t, doctor.Critical, all[0].Severity)
	require.Contains(t, all[0].What, `it refuses what is asked: nats: permissions violation: Permissions Violation for Publish to "$JS.API.STREAM.LIST"`)
	require.Contains(t, all[0].Remedy, "the rights of doctor are in the guide to NATS in production")

	said := strings.Join(lines(natscheck.Look(t.Context(), connect(t, url("halfway")), needs)), "\n")
	require.Contains(t, said, `they can't all be seen: nats: permissions violation: Permissions Violation for Publish to "$JS.API.STREAM.INFO.ordering_order"`)

	require.Equal(t, []string{"warning ordering_order: it has one replica: a server that is lost takes messages with it that count as published"},
		lines(natscheck.Look(t.Context(), connect(t, url("doctor")), needs)))
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
