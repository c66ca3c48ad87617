package outboxdb_test

import (
	"testing"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/outbox"
)

// conforming is a bench's store, with what the suite needs beside it.
type conforming struct {
	*outboxdb.Store

	bench *outboxdbtest.Bench
}

func (c conforming) InsertRows(rows ...outbox.Row) { c.bench.InsertRows(rows...) }

func TestStore_ConformsToWhatTheRelayReliesOn(t *testing.T) {
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"sqlite": outboxdbtest.SQLite, "postgres": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			relaytest.Conform(t, func(t *testing.T) relaytest.Database {
				b := outboxdbtest.Open(t, open(t))
				return conforming{b.Store, b}
			})
		})
	}
}
