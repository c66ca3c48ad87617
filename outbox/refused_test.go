package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// S1: what a database refuses a lane shows in its state within seconds, in the
// database's words, although all else is allowed; and no longer when it is given.
func TestProcessor_S1_WhatTheDatabaseRefusesShows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse, allow, what, words string
		aside                      bool
	}{
		"to claim": {
			"REVOKE SELECT ON SEQUENCE outbox_seq_seq FROM waybill_test_engine", "GRANT SELECT ON SEQUENCE outbox_seq_seq TO waybill_test_engine",
			"claim rows", "permission denied for sequence outbox_seq_seq", false,
		},
		"to settle": {
			"REVOKE INSERT ON outbox_published FROM waybill_test_engine", "GRANT INSERT ON outbox_published TO waybill_test_engine",
			"write back what became of rows", "permission denied for table outbox_published", false,
		},
		"to hold partitions": {
			"REVOKE INSERT ON outbox_workers FROM waybill_test_engine", "GRANT INSERT ON outbox_workers TO waybill_test_engine",
			"keep its partitions", "permission denied for table outbox_workers", false,
		},
		"to clean up": {
			"REVOKE UPDATE ON outbox_jobs FROM waybill_test_engine", "GRANT UPDATE ON outbox_jobs TO waybill_test_engine",
			"remove expired rows", "permission denied for table outbox_jobs", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := outboxtest.Open(t, openPostgres(t))
			b.Exec(c.refuse)
			cfg := quick()
			cfg.Retention.Every = 100 * time.Millisecond
			p := processor(t, b, cfg, lane(memory.New(memory.Config{})))
			begin := time.Now()
			b.Insert("a")
			eventually(t, func() bool { return p.Status()["default"].Database != nil }, "it shows")
			require.Less(t, time.Since(begin), 10*time.Second)
			s := p.Status()["default"]
			require.Equal(t, c.what, s.Database.What)
			require.Equal(t, "42501", s.Database.Code)
			require.Equal(t, c.aside, s.Database.Aside)
			require.WithinRange(t, s.Database.Since, begin.Add(-time.Minute), time.Now())
			require.Contains(t, s.LastError, c.words)

			b.Exec(c.allow)
			statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
			eventually(t, func() bool { s := p.Status()["default"]; return s.Database == nil && s.LastError == "" }, "it is over")
		})
	}
}
