package repository_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
)

type eventRow struct {
	Version   int64
	N         int
	MessageID *string
	Type      string
	Data      *string
	Metadata  *string
}

func (db testDB) events(t *testing.T, id string) (rows []eventRow) {
	t.Helper()
	require.NoError(t, db.provider.Reader().NewSelect().Table("events").
		Column("version", "n", "message_id", "type", "data", "metadata").
		Where("category = 'shop::ledger'").Where("id = ?", id).Order("version", "n").Scan(t.Context(), &rows))
	return rows
}

// A8: the store and the outbox have the same events with the same bytes.
func TestEventSourced_A8_EventsGoToTheOutbox(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ledgers := repository.EventSourced[*Ledger](db.units)
		ctx := domain.WithOrigin(t.Context(), domain.Origin{
			CorrelationID: "corr", CausationID: "cause", TenantID: "it's", Extensions: map[string]string{"a": "b"},
		})
		l := newLedger("l")
		l.Add(1)
		l.SetLabel("a\x00<b> 'c' \\ żółć")
		require.NoError(t, ledgers.Save(ctx, l))
		l.Add(2)
		require.NoError(t, ledgers.Save(t.Context(), l))

		stored, sent := db.events(t, "l"), db.outbox(t, "shop::ledger-l")
		require.Len(t, stored, 3)
		require.Len(t, sent, 3)
		for i, e := range stored {
			require.Equal(t, sent[i].MessageID, *e.MessageID)
			require.Equal(t, sent[i].MessageType, e.Type)
			require.Equal(t, sent[i].AggregateVersion, e.Version)
			var body struct{ Data json.RawMessage }
			require.NoError(t, json.Unmarshal(sent[i].Payload, &body))
			require.Equal(t, string(body.Data), *e.Data)
		}
		require.Equal(t, []int{1, 2, 1}, []int{stored[0].N, stored[1].N, stored[2].N})
		require.JSONEq(t, `{"correlation_id": "corr", "causation_id": "cause", "tenant_id": "it's", "extensions": {"a": "b"}}`, *stored[1].Metadata)
		require.NotContains(t, *stored[2].Metadata, "tenant_id")

		got, err := ledgers.Get(t.Context(), "l")
		require.NoError(t, err)
		require.Equal(t, 3, got.Total())
		require.Equal(t, "a\x00<b> 'c' \\ żółć", got.Text())
		require.EqualValues(t, 2, got.Version())
	})
}

func TestEventSourced_OlderEventsAreUpcast(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ledgers := repository.EventSourced[*Ledger](db.units)
		db.exec(t, `INSERT INTO events (category, id, version, n, message_id, type, data, occurred_at) VALUES
			('shop::ledger', 'old', 1, 1, '019a0000-0000-7000-8000-000000000001', 'Shop.LedgerAdded.v1', '{"Amount": 40}', '2026-01-02T03:04:05.678Z'),
			('shop::ledger', 'old', 2, 1, '019a0000-0000-7000-8000-000000000002', 'Shop.LedgerAdded.v2', '{"N": 2}', '2026-01-02T03:04:05.678Z'),
			('shop::ledger', 'newer', 1, 1, '019a0000-0000-7000-8000-000000000003', 'Shop.LedgerAdded.v3', '{}', '2026-01-02T03:04:05.678Z')`)
		l, err := ledgers.Get(t.Context(), "old")
		require.NoError(t, err)
		require.Equal(t, 42, l.Total())
		require.EqualValues(t, 2, l.Version())

		_, err = ledgers.Get(t.Context(), "newer")
		require.ErrorContains(t, err, "repository: Shop.LedgerAdded.v3 in version 1 of shop::ledger newer can't be read: ")
		unknown, ok := errors.AsType[*domain.UnknownEventError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "Shop.LedgerAdded.v2", unknown.Known)
	})
}

func TestEventSourced_PlainRaiseIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ledgers := repository.EventSourced[*Ledger](db.units)
		l := newLedger("raised")
		l.Add(1)
		l.Raise(LedgerAdded{N: 1})
		err := ledgers.Save(t.Context(), l)
		require.ErrorContains(t, err, "repository_test.LedgerAdded was raised by Raise")
		require.ErrorContains(t, err, "domain.Record(aggregate, event)")
		require.Empty(t, db.events(t, "raised"))
		require.Empty(t, db.outbox(t, ""))
	})
}

func TestEventSourced_NothingRaisedNothingStored(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ledgers := repository.EventSourced[*Ledger](db.units)
		require.ErrorContains(t, ledgers.Save(t.Context(), newLedger("empty")), "raised no event")

		l := newLedger("l")
		l.Add(1)
		require.NoError(t, ledgers.Save(t.Context(), l))
		require.NoError(t, ledgers.Save(t.Context(), l))
		require.NoError(t, ledgers.Update(t.Context(), "l", func(*Ledger) error { return nil }))
		require.EqualValues(t, 1, l.Version())
		require.Len(t, db.events(t, "l"), 1)

		// But what was removed in this unit is brought back.
		require.NoError(t, db.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, ledgers.Remove(ctx, l))
			return ledgers.Save(ctx, l)
		}))
		got, err := ledgers.Get(t.Context(), "l")
		require.NoError(t, err)
		require.Equal(t, 1, got.Total())
	})
}

func TestEventSourced_HistoryOutlivesRemoval(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ledgers := repository.EventSourced[*Ledger](db.units)
		l := newLedger("l")
		l.Add(1)
		require.NoError(t, ledgers.Save(t.Context(), l))
		l.SetLabel("closed")
		require.NoError(t, ledgers.Remove(t.Context(), l))
		var types []string
		for _, e := range db.events(t, "l") {
			types = append(types, e.Type)
		}
		require.Equal(t, []string{"Shop.LedgerAdded.v2", "Shop.LedgerLabelled.v1", "waybill.removed"}, types)
	})
}
