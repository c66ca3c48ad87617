package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/repository"
)

// A broker that is opened for it has outboxes publish in transactions, also behind a prefix;
// another one doesn't.
func TestEngine_PublishesInTransactionsWhereTheBrokerIsToldTo(t *testing.T) {
	for name, exactly := range map[string]bool{"exactly once": true, "at least once": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			main := memory.New(memory.Config{ExactlyOnce: exactly})
			cfg := b.config()
			cfg.Brokers["default"] = broker.Prefixed(main, "p.")
			b.start(cfg)
			require.NoError(t, repository.New[*sale](cfg.Units[0]).Save(t.Context(), newSale(1)))
			eventually(t, func() bool { return len(main.Messages("p.sales.sale")) == 1 })
			require.Equal(t, exactly, len(main.Marks("p."+broker.TransactionalPrefix)) == 1)
			require.Len(t, main.Marks(""), len(main.Marks("p."+broker.TransactionalPrefix)))
		})
	}
}

// Where some processes publish in transactions and others don't, as in a deployment that stopped
// half way, readers get messages twice: health says so, until they are one kind.
func TestEngine_SaysThatSomeProcessesPublishInTransactions(t *testing.T) {
	b := setup(t)
	with := func(exactly bool) *Engine {
		cfg := b.config()
		cfg.Brokers["default"] = memory.New(memory.Config{ExactlyOnce: exactly})
		return b.start(cfg)
	}
	one, two := with(true), with(false)
	for _, e := range []*Engine{one, two} {
		d := diagnosed(t, e, "exactly_once_differs")
		require.Contains(t, d.Reasons[0].Text, "some of its processes publish in transactions, and others don't: ")
		require.Contains(t, d.Reasons[0].Text, ", exactly_once (")
	}
	require.NoError(t, two.Stop(t.Context()))
	diagnosed(t, one)
}
