package outboxdb_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
)

// S2-03: what is kept of an event, from its insertion to its end, by table. A claim's token stands for the worker that has
// the row and the member's row for the end of its lease.
func TestSchema_S2_03_S2_05_Columns(t *testing.T) {
	tables := map[string]string{
		"outbox_lanes": "id target",
		"outbox_messages": "aggregate_id aggregate_type aggregate_version bytes causation_id cloud_event content_type correlation_id created_at id key lane " +
			"message_id message_type occurred_at part partition_key payload priority seq stream stream_category tenant_id topic topic_hash traceparent",
		"outbox_queue":      "attempts bytes class due_at error failed_at failure held key lane losses part seq topic",
		"outbox_members":    "broker healthy lane member name since trouble until",
		"outbox_partitions": "lane owner part",
		"outbox_claims":     "at member n seqs",
		"outbox_log":        "at attempts high id lane low member n published retries seqs",
		"outbox_abandoned":  "at attempts class error key lane losses maybe_delivered part seq",
	}
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		for table, want := range tables {
			require.Equal(t, want, strings.Join(columnsOf(t, b, table), " "), table)
		}
	})
}

func columnsOf(t *testing.T, b *outboxdbtest.Bench, table string) []string {
	t.Helper()
	rows, err := b.DB.QueryContext(t.Context(), "SELECT * FROM "+table+" WHERE 1 = 0")
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	columns, err := rows.Columns()
	require.NoError(t, err)
	require.NoError(t, rows.Err())
	slices.Sort(columns)
	return columns
}

// S2-05: the tables that a row is in are its status, so that there is no wrong one; what else says how it stands is checked
// by the database itself.
func TestSchema_S2_03_S2_05_WhatIsRefused(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		b.Insert("a")
		b.Exec("UPDATE outbox_queue SET class = -1, attempts = 1, losses = 1, failure = 'crash', error = 'x'")
		for _, change := range []string{"class = 2", "class = -2", "attempts = -1", "losses = -1", "failure = 'broken'", "error = '" + strings.Repeat("x", 2049) + "'"} {
			_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox_queue SET "+change)
			require.Error(t, err, change)
			require.Contains(t, strings.ToLower(err.Error()), "check constraint", change)
		}
	})
}
