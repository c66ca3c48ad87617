package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/uow"
)

// setTimer stores a timer of the broker default, and returns its id.
func (p *patient) setTimer(t *testing.T, at time.Time) string {
	t.Helper()
	row := outboxdbtest.Row("o-1")
	set := timerdb.Set(timerdb.Timer{Owner: row.MessageID, Name: "due", At: at, Row: row})
	require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: set, Rows: -1}}))
	return row.MessageID
}

func TestTimers_NobodySendsThem(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.setTimer(t, time.Now().Add(time.Hour))
		p.setTimer(t, time.Now().Add(-time.Minute))
		require.Empty(t, p.examine(t), "an engine may be about to")
		p.setTimer(t, time.Now().Add(-10*time.Minute))
		p.has(t, "timers", Critical, "table timers", "was due 10m", "start an engine")
	})
}

// A timer that was sent is in the outbox, a dead letter, or on its way for an hour at
// most.
func TestTimers_SentAndNowhere(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 0)
		id := p.setTimer(t, time.Now().Add(-time.Hour))
		_, err := timerdb.New(p.DB(), p.Reader()).Promote(t.Context(), "default", 500)
		require.NoError(t, err)
		m := p.processor(t)
		p.exec(t, "UPDATE timers SET sent_at = "+p.ago(2*time.Hour))
		require.Empty(t, p.examine(t), "it is in the outbox")
		rows := m.ClaimAll()
		require.True(t, m.Settle(m.Settlement(rows...)))
		p.has(t, "timers", Warning, "table timers", "1 timer was sent more than 1h0m0s ago, such as "+id, "waybill timers stop --id "+id)
		p.exec(t, "INSERT INTO dead_letters (id, subscription, topic, partition_key, key_id, message_id, headers, error, reason, attempts, first_at, last_at, status, holds)"+
			" VALUES ('"+id+"', 'library.commands', 'library.commands', 'k', 'k', '"+id+"', '{}', 'no', 'failed', 8, "+p.ago(0)+", "+p.ago(0)+", 'parked', TRUE)")
		require.Empty(t, p.examine(t), "it is a dead letter")
		p.exec(t, "UPDATE dead_letters SET status = 'discarded'")
		p.has(t, "timers", Warning, "table timers", "neither in the outbox nor a dead letter", "--status discarded")
		p.exec(t, "UPDATE timers SET sent_at = "+p.ago(time.Minute))
		require.Empty(t, p.examine(t), "it may be on its way")
	})
}

func TestTimers_Broken(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.place(t, 0)
		id := p.setTimer(t, time.Now().Add(-time.Minute))
		p.exec(t, `UPDATE timers SET message = '{"target":"default","occurred_at":"soon"}'`)
		done, err := timerdb.New(p.DB(), p.Reader()).Promote(t.Context(), "default", 500)
		require.NoError(t, err)
		require.Len(t, done.Broken, 1)
		p.has(t, "timers", Warning, "table timers", "1 timer was set aside, such as "+id, "waybill timers fire --status broken")
	})
}
