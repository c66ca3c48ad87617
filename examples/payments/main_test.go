package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
	"github.com/waybill-go/waybill/subscription/dedup/natskv"
)

// The test's program is its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "work" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]int{
		"--help": 0, "--payments 0": exitUsage, "--workers 0": exitUsage, "--kills -1": exitUsage, "more": exitUsage, "--nothing": exitUsage,
		"work nats://127.0.0.1:1 none": exitWorker, "--dir /dev/null/x": exitFailed,
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, want, run(t.Context(), strings.Fields(args), &stdout, &stderr), args)
		require.NotEmpty(t, stdout.String()+stderr.String(), args)
	}
}

// S0-13: workers are killed over and over, by kill -9 from outside and at the
// steps of a payment; S0-02, S0-04, S0-05: each card is debited once, and each
// confirmation has one id and one body. A second run on the same data finds
// nothing but duplicates.
func TestPayments_S0_13_S0_02_S0_04_S0_05_KilledOverAndOver(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	for _, kills := range []string{"8", "0"} {
		var stdout, stderr bytes.Buffer
		code := run(ctx, strings.Fields("--payments 150 --cards 7 --workers 3 --kills "+kills+" --dir "+dir), &stdout, &stderr)
		require.Zero(t, code, "%s\n%s", stdout.String(), stderr.String())
		require.Contains(t, stdout.String(), "150 payments in the books")
		require.Contains(t, stdout.String(), "150 confirmations")
		require.Regexp(t, `(?m)^`+kills+` workers killed from outside`, stdout.String())
	}
}

// forgetful says of every id that it wasn't processed.
type forgetful struct{ *natskv.Store }

func (forgetful) Has(context.Context, string) (bool, error) { return false, nil }

// The books notice what they are for.
func TestBooks_NoticeWhatIsWrong(t *testing.T) {
	server, err := embedded.Open(t.Context(), embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", SyncInterval: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close(context.Background())) }()
	nc, err := connect(server.Client())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = prepare(t.Context(), js)
	require.NoError(t, err)
	store, err := natskv.Open(t.Context(), js, natskv.Config{Bucket: "cards"})
	require.NoError(t, err)
	publisher, err := nats.Open(t.Context(), server.Client())
	require.NoError(t, err)
	defer func() { require.NoError(t, publisher.Close(context.Background())) }()
	pay := func(id string) broker.Message {
		body, err := json.Marshal(Payment{Card: "card", Cents: 100})
		require.NoError(t, err)
		_, err = js.PublishMsg(t.Context(), &natsgo.Msg{Subject: "payments", Data: body, Header: natsgo.Header{"id": {id}, "card": {"card"}}})
		require.NoError(t, err)
		return broker.Message{ID: id, Topic: "payments", Key: "card", Body: body}
	}
	wrong := func() string {
		b, err := closeBooks(t.Context(), js)
		require.NoError(t, err)
		var out bytes.Buffer
		b.print(&out)
		require.Equal(t, len(b.wrong) == 0, strings.Contains(out.String(), "one id and one body"))
		return strings.Join(b.wrong, "\n")
	}
	once, err := cards(store, publisher)
	require.NoError(t, err)
	twice, err := cards(forgetful{store}, publisher)
	require.NoError(t, err)

	first := pay("payment-1")
	require.NoError(t, once.Handle(t.Context(), first))
	require.Empty(t, wrong())
	second := pay("payment-2")
	require.Contains(t, wrong(), "payment-2 was never confirmed")
	require.NoError(t, once.Handle(t.Context(), second))
	require.NoError(t, once.Handle(t.Context(), first))
	require.Empty(t, wrong())
	require.NoError(t, twice.Handle(t.Context(), first))
	require.Contains(t, wrong(), "payment-1 was confirmed as")
	require.Contains(t, wrong(), "card has {Debited:300 Payments:3}, want {Debited:200 Payments:2}")
}
