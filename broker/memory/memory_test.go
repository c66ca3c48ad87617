package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/brokertest"
	"github.com/waybill-go/waybill/broker/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]memory.Config{
		"prefix":    {},
		"no prefix": {NoPrefix: true},
		"dedup":     {Dedup: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New(cfg)
			brokertest.Run(t, brokertest.Harness{
				Open:       func(*testing.T) broker.Broker { return b.Connect() },
				AutoTopics: true,
			})
		})
	}
}
