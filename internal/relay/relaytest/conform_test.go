package relaytest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore_Conforms(t *testing.T) {
	relaytest.Conform(t, func(*testing.T) relaytest.Database { return relaytest.New(8) })
}
