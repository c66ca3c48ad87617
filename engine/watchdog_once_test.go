package engine

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/senders"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
)

// What is wrong is said once, where it is, for as long as it is so: of a database that is down or
// was moved nothing else is told, and of one nothing that is another's.
func TestReasons_EachIsSaidOnceAndInItsPlace(t *testing.T) {
	down := func(s sight) { s.parts.Providers["default"] = newComponent(false, "connection refused") }
	moved := func(s *sight) {
		s.moved = map[string]*outbox.MovedError{"default": {Recorded: outbox.Identity{System: "1"}, Present: outbox.Identity{System: "2"}}}
	}
	heard := func(s *sight) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		s.heard, s.own = map[string]senders.Heard{"default": {"parcels": {"ours": at, "theirs": at}}}, []string{"ours"}
	}
	trouble := &outbox.Trouble{What: "remove expired rows", Error: "read-only", Code: "25006", Aside: true}
	for name, c := range map[string]struct {
		see  func(*sight)
		want []string
	}{
		"a clock that is off": {func(s *sight) { s.clocks = map[string]time.Duration{"default": time.Hour} }, []string{"clock_off degraded database default"}},
		"a clock, beside a database that is down": {func(s *sight) {
			down(*s)
			s.clocks = map[string]time.Duration{"default": time.Hour}
		}, []string{"database_down stuck database default"}},
		"a database that was moved, and is slow": {func(s *sight) {
			moved(s)
			slow := newComponent(true, "")
			slow.slow = 2 * time.Second
			s.parts.Providers["default"] = slow
		}, []string{"database_moved stuck database default"}},
		"a database that was moved, and is down": {func(s *sight) {
			moved(s)
			down(*s)
			s.partner(waits(20000, time.Hour))
		}, []string{"database_moved stuck database default"}},
		"a projection that is stopped, beside a database that is down": {func(s *sight) {
			down(*s)
			s.projections = map[string]projectionsSight{"default": {builds: []projection.Progress{{Name: "left", Build: 1, Version: 1, Status: projection.Live}}}}
		}, []string{"database_down stuck database default"}},
		"idle processes of one of two databases": {func(s *sight) {
			s.parts.Providers["second"] = newComponent(true, "")
			s.idle = map[lane]int64{{"second", "lending"}: 2}
		}, []string{"processes_idle degraded database second"}},
		"a topic of two services": {heard, []string{"senders_mixed degraded subscription parcels"}},
		"a topic of two services, one of whose names isn't known": {func(s *sight) {
			heard(s)
			s.unnamed = true
		}, nil},
		"messages that were missed lately": {func(s *sight) {
			s.parcels(func(c *subscriptionSight) { c.sinceMissed = new(recentLoss - 1) })
		}, []string{"subscription_missed degraded subscription parcels"}},
		"messages that were missed long ago": {func(s *sight) {
			s.parcels(func(c *subscriptionSight) { c.sinceMissed = new(recentLoss) })
		}, nil},
		"a subscription that doesn't run, for another cause than what its database refuses": {func(s *sight) {
			s.parcels(func(c *subscriptionSight) { c.status.Running, c.status.Database = false, trouble })
		}, []string{"subscription_down degraded subscription parcels", "database_refuses degraded subscription parcels"}},
		"a process that isn't heard of, and all that waits is in its hands": {func(s *sight) {
			s.partner(func(l *laneSight) {
				l.status.Silent, l.stats.Counts[outbox.Processing] = &outbox.Silence{Partitions: 64}, 3
			})
		}, []string{"owner_silent degraded outbox default to partner"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := well()
			c.see(&s)
			s.has(t, c.want, nil)
		})
	}
}
