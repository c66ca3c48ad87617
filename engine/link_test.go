package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// narrow is a broker whose server takes messages of 1 MiB.
type narrow struct{ *memory.Broker }

func (narrow) MaxMessage() int { return 1 << 20 }

// B13: a unit that commits a body which the server then refuses has lost its event to
// the dead rows. That it could is told at the start, by both limits, also behind a
// prefix.
func TestStart_B13_AServerThatTakesLessThanUnitsCommit(t *testing.T) {
	for name, c := range map[string]struct {
		bodies int
		warned bool
	}{
		"the default":  {0, true},
		"no limit":     {-1, true},
		"just too big": {1<<20 - outbox.BesideBody, true},
		"small enough": {1<<20 - outbox.BesideBody - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			m := units(t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}, External: []outbox.Target{{Broker: "partner"}}, MaxMessageBytes: c.bodies})
			cfg := b.config()
			cfg.Units = []*uow.Manager{m}
			cfg.Brokers = map[string]broker.Broker{"default": b.main, "partner": broker.Prefixed(narrow{b.partner}, "p.")}
			b.start(cfg)
			require.NoError(t, repository.New[*sale](m).Save(t.Context(), newSale(1)))
			eventually(t, func() bool { return len(b.partner.Messages("p.sales.sale")) == 1 })
			warnings := b.logs.with("level=WARN", "takes smaller messages", "broker=partner", "server_takes=1048576", "lower_to=1044480")
			require.Equal(t, c.warned, len(warnings) == 1)
			require.Empty(t, b.logs.with("takes smaller messages", "broker=default"))
		})
	}
}
