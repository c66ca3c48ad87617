package subscription_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// S1: what a database refuses a subscription shows in its state, in the database's
// words, also what goes on beside handling messages; and no longer when it is given.
func TestRunner_S1_WhatTheDatabaseRefusesShows(t *testing.T) {
	t.Parallel()
	for table, c := range map[string]struct {
		right, what string
		aside       bool
	}{
		"inbox":                  {"SELECT", "look messages up in its inbox", false},
		"subscription_runs":      {"INSERT", "say that it runs", true},
		"dead_letters":           {"SELECT", "look for dead letters to replay", true},
		"subscription_evictions": {"SELECT", "remove old entries from its inbox", true},
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPostgres(t))
			r, _ := w.start(w.stream(), w.broker)
			w.publish(placed("o-1", "first"))
			w.until(func() bool { return r.Status().Handled == 1 }, "it works")
			require.Nil(t, r.Status().Database)

			w.exec("REVOKE " + c.right + " ON " + table + " FROM waybill_test_engine")
			if table == "subscription_evictions" {
				r, _ = w.start(w.stream(), w.broker) // it looks at the start, and then once a minute
			}
			if !c.aside { // what goes on beside shows without a message
				w.publish(placed("o-2", "second"))
			}
			w.until(func() bool { return r.Status().Database != nil }, "it shows")
			s := r.Status()
			require.Equal(t, c.what, s.Database.What)
			require.Equal(t, "42501", s.Database.Code)
			require.Equal(t, c.aside, s.Database.Aside)
			require.Contains(t, s.Database.Error, "permission denied for table "+table)
			require.Contains(t, s.LastError, "permission denied for table "+table)
			if table == "subscription_evictions" {
				return
			}
			w.exec("GRANT " + c.right + " ON " + table + " TO waybill_test_engine")
			w.until(func() bool { return r.Status().Database == nil }, "it is over")
			if c.aside {
				w.publish(placed("o-2", "second"))
			}
			w.until(func() bool { return w.allEffects() == 2 }, "it goes on")
		})
	}
}
