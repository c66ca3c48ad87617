package relay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// S1: what a database refuses a lane shows in its state within seconds, in the
// database's words, although all else is allowed; and no longer when it is given.
// Conformance: F-63.
func TestProcessor_S1_WhatTheDatabaseRefusesShows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		right, what, words string
		aside              bool
	}{
		"to claim":           {"INSERT ON outbox_claims", "claim rows", "permission denied for table outbox_claims", false},
		"to settle":          {"INSERT ON outbox_log", "write back what became of rows", "permission denied for table outbox_log", false},
		"to hold partitions": {"INSERT ON outbox_members", "keep its partitions", "permission denied for table outbox_members", false},
		"to clean up":        {"UPDATE ON outbox_jobs", "remove expired rows", "permission denied for table outbox_jobs", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))
			b.Exec("REVOKE " + c.right + " FROM waybill_test_engine")
			cfg := quick()
			cfg.Retention.Every = 100 * time.Millisecond
			p := processor(t, b, cfg, to(memory.New(memory.Config{})))
			begin := time.Now()
			b.Insert("a")
			eventually(t, func() bool { return p.Status()[target].Database != nil }, "it shows")
			require.Less(t, time.Since(begin), 10*time.Second)
			s := p.Status()[target]
			require.Equal(t, c.what, s.Database.What)
			require.Equal(t, "42501", s.Database.Code)
			require.Equal(t, c.aside, s.Database.Aside)
			require.WithinRange(t, s.Database.Since, begin.Add(-time.Minute), time.Now())
			require.Contains(t, s.LastError, c.words)

			b.Exec("GRANT " + c.right + " TO waybill_test_engine")
			statuses(t, b, map[outbox.Status]int{outbox.Published: 1})
			eventually(t, func() bool { s := p.Status()[target]; return s.Database == nil && s.LastError == "" }, "it is over")
		})
	}
}
