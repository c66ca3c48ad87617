package nats_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/broker/nats/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is one that can be stopped and started again at the same address.
type server struct {
	cfg     embedded.Config
	running *embedded.Broker
	url     string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{cfg: embedded.Config{Dir: t.TempDir()}}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	var err error
	s.running, err = embedded.Open(t.Context(), s.cfg)
	require.NoError(t, err)
	s.url = s.running.URL()
	_, err = fmt.Sscanf(s.url, "nats://127.0.0.1:%d", &s.cfg.Port)
	require.NoError(t, err)
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.running.Close(context.Background()))
}

func (s *server) open(t *testing.T) broker.Broker {
	t.Helper()
	b, err := nats.Open(t.Context(), nats.Config{URL: s.url})
	require.NoError(t, err)
	return b
}

func TestConformance(t *testing.T) {
	s := newServer(t)
	brokertest.Run(t, brokertest.Harness{
		Open: s.open,
		Stop: func(t *testing.T) (start func()) {
			s.stop(t)
			return func() { s.start(t) }
		},
		TooLarge: 9 << 20,
		Standby:  true,
	})
}
