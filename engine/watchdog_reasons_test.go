package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/subscription"
)

// well is what a healthy engine sees: one database, two brokers, one subscription.
func well() sight {
	stats := func() laneSight {
		s := outbox.NoStats()
		s.LeaseOwners = []string{"host-1-a-1"}
		return laneSight{stats: &s, status: &outbox.LaneStatus{Running: true, Breaker: "closed"}}
	}
	return sight{
		status: "ready",
		parts: components{
			Providers: map[string]component{"default": newComponent(true, "")},
			Brokers:   map[string]component{"default": newComponent(true, ""), "partner": newComponent(true, "")},
		},
		outboxes: map[string]outboxSight{"default": {lanes: map[string]laneSight{"default": stats(), "partner": stats()}}},
		subscriptions: map[string]subscriptionSight{
			"parcels": {provider: "default", status: subscription.Status{Running: true}, lag: &subscription.Lag{}},
		},
		letters: map[lane]int64{{"default", "parcels"}: 0},
	}
}

// partner changes what is seen of its lane.
func (s sight) partner(change func(*laneSight)) {
	l := s.outboxes["default"].lanes["partner"]
	change(&l)
	s.outboxes["default"].lanes["partner"] = l
}

// has says that these are its reasons, and what they say.
func (s sight) has(t *testing.T, want, says []string) {
	t.Helper()
	var got []string
	text := ""
	for _, r := range s.reasons() {
		require.NotEmpty(t, r.remedy, r.Code)
		text += r.what + ". " + r.remedy + "\n"
		got = append(got, fmt.Sprintf("%s %s %s", r.Code, r.State, r.where()))
	}
	require.ElementsMatch(t, want, got)
	for _, word := range says {
		require.Contains(t, text, word)
	}
}

func (s sight) parcels(change func(*subscriptionSight)) {
	c := s.subscriptions["parcels"]
	change(&c)
	s.subscriptions["parcels"] = c
}

func waits(n int64, oldest time.Duration) func(*laneSight) {
	return func(l *laneSight) {
		l.stats.Counts[outbox.Pending] = n
		l.stats.OldestPending = &oldest
	}
}

// S2-23, F-21: every cause has its code, its state and its place, at its limit and
// not before, and says what to do.
func TestWatchdog_S2_23_F_21_Reasons(t *testing.T) {
	words := "no leader"
	hours := func(l *laneSight) { l.still = time.Hour }
	for name, c := range map[string]struct {
		see  func(sight) sight
		want []string // "code state place"
		says []string
	}{
		"nothing": {func(s sight) sight { return s }, nil, nil},
		"rows wait for a moment": {func(s sight) sight {
			s.partner(waits(1000, time.Minute))
			s.partner(hours)
			return s
		}, nil, nil},
		"starting": {func(s sight) sight { s.status = "starting"; return s }, []string{"not_running degraded the engine"}, []string{"it starts"}},
		"stopping": {func(s sight) sight { s.status = "draining"; return s }, []string{"not_running degraded the engine"}, []string{"it stops"}},
		"stopped":  {func(s sight) sight { s.status = "stopped"; return s }, []string{"not_running degraded the engine"}, []string{"it has stopped"}},
		"a database that is down, and nothing of what it said before": {func(s sight) sight {
			s.parts.Providers["default"] = newComponent(false, "connection refused")
			s.partner(waits(20000, time.Hour))
			s.parcels(func(c *subscriptionSight) { c.status.Running = false })
			return s
		}, []string{"database_down stuck database default"}, []string{"(connection refused)", "`waybill outbox stats`"}},
		"a database of which nothing is known": {func(s sight) sight {
			text := "no answer in time"
			s.parts.Providers["default"] = component{Error: &text}
			return s
		}, []string{"database_down stuck database default"}, []string{"(no answer in time)"}},
		"a database to which no connection is free": {func(s sight) sight {
			used := newComponent(false, "all 16 connections are in use")
			used.usedUp = true
			s.parts.Providers["default"] = used
			s.partner(waits(20000, time.Hour))
			return s
		}, []string{"connections_used_up stuck database default"}, []string{"(all 16 connections are in use)", "max_conns", "pg_stat_activity"}},
		"a writer that a handler has": {func(s sight) sight {
			held := newComponent(true, "")
			held.held = "the handler of Sales.SaleMade.v1, message m-1, has had it for 7s"
			s.parts.Providers["default"] = held
			trouble := &outbox.Trouble{What: "keep its partitions", Error: "outbox: renew: context deadline exceeded"}
			s.partner(func(l *laneSight) { l.status.Database = trouble })
			s.parcels(func(c *subscriptionSight) { c.status.Database = trouble })
			o := s.outboxes["default"]
			o.timers.trouble = trouble
			s.outboxes["default"] = o
			return s
		}, []string{"writer_held stuck database default"}, []string{"(the handler of Sales.SaleMade.v1, message m-1, has had it for 7s)", "wait for it outside"}},
		// S1: the reason names the database's words and what helps.
		"a database that refuses a lane to claim": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.status.Database = &outbox.Trouble{What: "claim rows", Error: "permission denied", Code: "42501"}
			})
			return s
		}, []string{"database_refuses stuck outbox default to partner"}, []string{"refuses to let it claim rows (permission denied)", "`waybill doctor`", "GRANT"}},
		"a database that is too slow for a lane": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.status.Database = &outbox.Trouble{What: "keep its partitions", Error: "outbox: renew: context deadline exceeded"}
			})
			slow := newComponent(true, "")
			slow.slow = 1234 * time.Millisecond
			s.parts.Providers["default"] = slow
			return s
		}, []string{"database_refuses stuck outbox default to partner", "database_slow degraded database default"}, []string{
			"the database doesn't answer in time, so it can't keep its partitions (outbox: renew", "it took 1.2s to answer two short questions",
		}},
		"a database that refuses to be cleaned up": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.status.Database = &outbox.Trouble{What: "remove expired rows", Error: "read-only", Code: "25006", Aside: true}
			})
			return s
		}, []string{"database_refuses degraded outbox default to partner"}, []string{"everything else continues", "primary"}},
		"a database that is down has no other reason": {func(s sight) sight {
			s.parts.Providers["default"] = newComponent(false, "connection refused")
			s.partner(func(l *laneSight) {
				l.status.Database = &outbox.Trouble{What: "claim rows", Error: "connection refused"}
			})
			return s
		}, []string{"database_down stuck database default"}, nil},
		"a database that refuses a subscription": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) {
				c.status.Running = false
				c.status.Database = &outbox.Trouble{What: "look messages up in its inbox", Error: "permission denied", Code: "42501"}
			})
			return s
		}, []string{"database_refuses stuck subscription parcels"}, []string{"GRANT"}},
		"counting takes too long": {func(s sight) sight {
			lanes := s.outboxes["default"].lanes
			for target := range lanes {
				lanes[target] = laneSight{status: lanes[target].status}
			}
			s.outboxes["default"] = outboxSight{err: noAnswer, lanes: lanes}
			return s
		}, []string{"not_counted degraded database default"}, []string{noAnswer}},
		"an open breaker, which is why nothing moves": {func(s sight) sight {
			s.parts.Brokers["partner"] = newComponent(false, "dial tcp: refused")
			s.partner(waits(3, stillAfter))
			s.partner(hours)
			s.partner(func(l *laneSight) {
				l.status.Breaker, l.status.LastError, l.status.Doing = "half-open", "dial tcp: refused\nat once", "trying single rows"
				l.stats.Members = []outbox.Member{{Name: "host-1", Trouble: "dial tcp: refused"}}
			})
			return s
		}, []string{"breaker_open degraded outbox default to partner", "rows_late degraded outbox default to partner"}, []string{"broker partner accepts nothing (dial tcp: refused); rows wait and use up no attempts"}},
		"topics that can't be made": {func(s sight) sight {
			s.parts.Brokers["partner"] = newComponent(false, words)
			return s
		}, []string{"broker_down degraded broker partner"}, []string{"(no leader)"}},
		"topics that don't answer": {func(s sight) sight {
			s.partner(func(l *laneSight) { l.status.OpenTopics, l.status.TopicError = []string{"sales.sale"}, "no leader" })
			return s
		}, []string{"topics_down degraded outbox default to partner"}, []string{`topics ["sales.sale"] accept nothing, although their broker answers (no leader)`}},
		// O4: a process that doesn't reach the broker that others reach.
		"some are sick": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.stats.Members = []outbox.Member{{Name: "host-1", Healthy: true, Partitions: 64}, {Name: "host-2", Trouble: "dial tcp: refused"}}
			})
			return s
		}, []string{"members_sick degraded outbox default to partner"}, []string{"1 of 2 processes (host-2): it can no longer reach the broker (dial tcp: refused); others have their partitions"}},
		"the broker is away for all": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.status = nil
				l.stats.Members = []outbox.Member{{Name: "host-1", Trouble: "refused"}, {Name: "host-2", Trouble: "refused"}}
			})
			return s
		}, []string{"members_sick degraded outbox default to partner"}, []string{"2 of 2 processes (host-1, host-2): they can no longer reach the broker (refused). They try again"}},
		"processes mean different brokers": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.stats.Members = []outbox.Member{
					{Name: "host-1", Healthy: true, Broker: &outbox.BrokerIdentity{System: "kafka", TopicPrefix: "shop."}},
					{Name: "host-2", Healthy: true, Broker: &outbox.BrokerIdentity{System: "kafka", TopicPrefix: "shop-2."}},
				}
			})
			return s
		}, []string{"brokers_differ degraded outbox default to partner"}, []string{"its processes publish to different brokers: kafka, topic_prefix shop. (host-1); kafka, topic_prefix shop-2. (host-2);"}},
		"some processes publish in transactions": {func(s sight) sight {
			s.partner(func(l *laneSight) {
				l.stats.Members = []outbox.Member{
					{Name: "host-1", Healthy: true, Broker: &outbox.BrokerIdentity{System: "kafka", TopicPrefix: "shop.", ExactlyOnce: true}},
					{Name: "host-2", Healthy: true, Broker: &outbox.BrokerIdentity{System: "kafka", TopicPrefix: "shop."}},
					{Name: "host-3", Healthy: true},
				}
			})
			return s
		}, []string{"exactly_once_differs degraded outbox default to partner"}, []string{"others don't: kafka, topic_prefix shop., exactly_once (host-1); kafka, topic_prefix shop. (host-2); what the latter publish can come more than once"}},
		"slow on purpose": {func(s sight) sight {
			s.partner(func(l *laneSight) { l.status.Doing = "checking rows of unanswered calls, 12 keys left" })
			return s
		}, []string{"slow_on_purpose degraded outbox default to partner"}, []string{"checking rows of unanswered calls, 12 keys left"}},
		"not moving": {
			func(s sight) sight {
				s.partner(waits(2, stillAfter))
				s.partner(func(l *laneSight) { l.still = stillAfter })
				return s
			},
			[]string{"not_moving stuck outbox default to partner", "rows_late degraded outbox default to partner"},
			[]string{"nothing has been published for 5m0s although 2 rows wait, the oldest for 5m0s", "host-1-a-1", "`waybill partitions {only}`"},
		},
		"the oldest row has no body": {func(s sight) sight {
			s.partner(func(l *laneSight) { l.stats.Counts[outbox.Pending], l.stats.Bodiless = 2, true })
			return s
		}, []string{"not_moving stuck outbox default to partner"}, []string{"has no body in outbox_messages that this role can see", "what is behind it goes without it", "restart the engines"}},
		"rows of a number without a name": {func(s sight) sight {
			l := laneSight{stats: new(outbox.NoStats())}
			l.stats.Counts[outbox.Pending] = 2
			s.outboxes["default"].lanes["lane 3, not in outbox_lanes"] = l
			return s
		}, []string{"no_owner stuck outbox default to lane 3, not in outbox_lanes"}, []string{"2 rows wait, and no process publishes them", "`waybill doctor` says how they get the number that their broker has now"}},
		"it moved a little while ago": {func(s sight) sight {
			s.partner(waits(2, stillAfter))
			s.partner(func(l *laneSight) { l.still = stillAfter - 1 })
			return s
		}, []string{"rows_late degraded outbox default to partner"}, nil},
		"not moving, behind a row that fails": {func(s sight) sight {
			s.partner(waits(2, stillAfter))
			s.partner(func(l *laneSight) {
				l.still, l.stats.Counts[outbox.Failed], l.stats.LastError = stillAfter, 1, &words
			})
			return s
		}, []string{
			"not_moving stuck outbox default to partner", "rows_failed degraded outbox default to partner", "rows_late degraded outbox default to partner",
		}, []string{"1 row failed (no leader)", "`waybill outbox retry {only} --status failed`"}},
		"all that waits is held": {
			func(s sight) sight {
				s.partner(waits(2, stillAfter))
				s.partner(func(l *laneSight) {
					l.still, l.stats.Counts[outbox.Abandoned], l.held = time.Hour, 1, outbox.Held{Keys: 1, Behind: 2}
				})
				return s
			},
			[]string{
				"keys_held degraded outbox default to partner", "rows_abandoned degraded outbox default to partner", "rows_late degraded outbox default to partner",
			},
			[]string{"1 key held by an abandoned row, with 2 rows behind", "`waybill outbox skip {only} --held`"},
		},
		"nobody publishes": {func(s sight) sight {
			s.partner(waits(1, time.Second))
			s.partner(func(l *laneSight) { l.stats.LeaseOwners, l.status = nil, nil })
			return s
		}, []string{"no_owner stuck outbox default to partner"}, []string{"1 row waits, and no process publishes them", "Start an engine with this broker"}},
		"nobody publishes, though this engine could": {func(s sight) sight {
			s.partner(func(l *laneSight) { l.stats.LeaseOwners, l.stats.Counts[outbox.Failed] = nil, 2 })
			return s
		}, []string{"no_owner stuck outbox default to partner", "rows_failed degraded outbox default to partner"}, []string{"its log says why"}},
		// N1: whom rows wait for.
		"a process that is not heard of": {
			func(s sight) sight {
				s.partner(waits(3, 20*time.Second))
				s.partner(func(l *laneSight) {
					l.status.Silent = &outbox.Silence{Partitions: 64, Processes: []string{"host-a-4711-00c0ffee"}, Until: time.Date(2026, 1, 2, 17, 3, 12, 0, time.UTC), For: 16 * time.Second}
				})
				return s
			},
			[]string{"owner_silent degraded outbox default to partner"},
			[]string{"64 partitions held by host-a-4711-00c0ffee until 17:03:12Z, not heard of for 16s; their rows wait until then", "`waybill partitions {only}`"},
		},
		"a process that is not heard of, and nothing waits": {func(s sight) sight {
			s.partner(func(l *laneSight) { l.status.Silent = &outbox.Silence{Partitions: 64} })
			return s
		}, nil, nil},
		"above the first limits": {func(s sight) sight {
			s.partner(waits(1001, time.Minute+1))
			return s
		}, []string{"rows_late degraded outbox default to partner", "rows_many degraded outbox default to partner"}, []string{"1001 rows"}},
		"at the second limits": {func(s sight) sight {
			s.partner(waits(10000, 10*time.Minute))
			return s
		}, []string{"rows_late degraded outbox default to partner", "rows_many degraded outbox default to partner"}, nil},
		"above the second limits": {func(s sight) sight {
			s.partner(waits(10001, 10*time.Minute+1))
			return s
		}, []string{"rows_late_critical degraded outbox default to partner", "rows_many_critical degraded outbox default to partner"}, nil},
		"a worker that crashed": {func(s sight) sight {
			ago := time.Second
			s.partner(func(l *laneSight) { l.crash, l.status.Crashes, l.status.LastCrash = &ago, 3, "nil map\ngoroutine 1" })
			return s
		}, []string{"worker_crashed degraded outbox default to partner"}, []string{"(3 times since the start) and was restarted (nil map)"}},
		"a worker that crashed long ago": {func(s sight) sight {
			s.partner(func(l *laneSight) { ago := recentCrash; l.crash = &ago })
			return s
		}, nil, nil},
		"a subscription that doesn't run": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) { c.status, c.lag = subscription.Status{LastError: words}, nil })
			return s
		}, []string{"subscription_down degraded subscription parcels"}, []string{"(no leader)"}},
		"a subscription that is paused, and so still": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) {
				c.status.Paused, c.still, c.lag = true, time.Hour, &subscription.Lag{Messages: 9}
			})
			return s
		}, []string{"subscription_paused degraded subscription parcels"}, []string{"Engine.Resume"}},
		"a subscription whose breaker is open": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) { c.status.Open, c.status.LastError = true, words })
			return s
		}, []string{"subscription_failing degraded subscription parcels"}, []string{"every message fails (no leader)"}},
		"a subscription that is still": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) { c.still, c.lag = stillAfter, &subscription.Lag{Messages: 1} })
			return s
		}, []string{"subscription_still stuck subscription parcels"}, []string{"handled nothing for 5m0s although 1 message wait"}},
		"a subscription of which handlers don't end": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) {
				c.status.Overdue, c.status.OverdueSince = 2, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			})
			return s
		}, []string{"subscription_overdue degraded subscription parcels"}, []string{"2 handlers go on although Stream.Timeout is over, since 2026-01-02T03:04:05Z", "when its context is done"}},
		"a subscription that waits for keys": { // B6
			func(s sight) sight {
				s.parcels(func(c *subscriptionSight) {
					c.status.Waiting, c.status.Stalled, c.status.StalledSince = 300, "the table is full", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				})
				return s
			},
			[]string{"subscription_waiting stuck subscription parcels"},
			[]string{"300 messages have been waiting for their keys since 2026-01-02T03:04:05Z, and no others can be taken (the table is full)", "`waybill dead-letters list {only}`"},
		},
		"a subscription all of whose messages wait for their time": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) {
				c.still, c.lag, c.status.Waiting = stillAfter, &subscription.Lag{Messages: 3}, 3
			})
			return s
		}, nil, nil},
		"a subscription without anything to do": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) { c.still = time.Hour })
			return s
		}, nil, nil},
		"a subscription that is behind": {func(s sight) sight {
			s.parcels(func(c *subscriptionSight) { c.lag = &subscription.Lag{Messages: -1, Age: farBehind + 1} })
			return s
		}, []string{"subscription_behind degraded subscription parcels"}, []string{"10m0s old"}},
		"dead letters, also of one that runs elsewhere": {
			func(s sight) sight {
				s.letters[lane{"default", "parcels"}], s.letters[lane{"default", "other"}] = 1, 2
				return s
			},
			[]string{"dead_letters degraded subscription other", "dead_letters degraded subscription parcels"},
			[]string{"1 dead letter of it", "`waybill dead-letters list {only}`"},
		},
		"messages whose process has not begun, among other dead letters of it": {
			func(s sight) sight {
				s.letters[lane{"default", "library.lending"}] = 3
				s.early = map[lane]subscription.EarlyLetters{{"default", "library.lending"}: {Count: 2, Error: `there is no lending "l1"`}}
				return s
			},
			[]string{"dead_letters degraded subscription library.lending", "dead_letters_early degraded subscription library.lending"},
			[]string{"1 dead letter of it", `2 messages of it arrived before the message that starts their process, which is overdue (there is no lending "l1")`, "list {only} --status early", "domain.Optional()"},
		},
		"processes that nothing will end": {
			func(s sight) sight {
				s.idle = map[lane]int64{{"default", "library.lending"}: 2}
				return s
			},
			[]string{"processes_idle degraded database default"},
			[]string{"2 of its processes (library.lending) have heard nothing for 30 days or longer", "`waybill processes list --idle`"},
		},
		"processes that no build has": {
			func(s sight) sight {
				s.unheard = map[lane]int64{{"default", "library.lending"}: 2, {"default", "library.loans"}: 1}
				return s
			},
			[]string{"processes_unheard degraded database default"},
			[]string{"3 of its processes (library.lending, library.loans) run, and neither this build nor a program that runs has that process", "give it its old name back"},
		},
		"a history that doesn't begin": {
			func(s sight) sight {
				o := s.outboxes["default"]
				o.unkept = map[string]string{"sales": "a transaction that has been writing to the outbox for long"}
				s.outboxes["default"] = o
				return s
			},
			[]string{"history_waits degraded database default"},
			[]string{"the history of context sales has not begun, and its events are not kept; it waits for a transaction that has been writing", "pg_stat_activity"},
		},
		"projections": {
			func(s sight) sight {
				stopped := &projection.Failure{Position: 7, Event: "Library.LoanPlaced.v1 m-1", Error: "no idea", Tries: 3, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
				s.projections = map[string]projectionsSight{"default": {builds: []projection.Progress{
					{Name: "loans", Build: 1, Version: 1, Status: projection.Live, Fed: true, Failure: stopped},
					{Name: "late", Build: 1, Version: 1, Status: projection.Live, Fed: true, BehindSeconds: 61, PerSecond: 10, ETA: -1},
					{Name: "soon", Build: 1, Version: 1, Status: projection.Live, Fed: true, BehindSeconds: 60},
					{Name: "left", Build: 1, Version: 1, Status: projection.Live},
					{Name: "left", Build: 2, Version: 2, Status: projection.Building, Fed: true, BehindSeconds: 100, ETA: time.Minute},
				}, refused: map[string]string{"next": "somebody reads"}}}
				return s
			},
			[]string{
				"projection_behind degraded projection late, build 1", "projection_not_fed degraded projection left, build 1",
				"projection_stopped degraded projection loans, build 1", "projection_waits degraded projection next",
			},
			[]string{
				"what it shows is 1m1s old: it handles 10 events per second, and doesn't come closer", "no engine feeds it, so it shows an old state; build 2 takes its place when it has caught up, and has caught up in about 1m0s",
				"it is in use and has stopped at position 7 since 2026-01-02T03:04:05Z: Library.LoanPlaced.v1 m-1 can't be handled, tried 3 times (no idea)", "`waybill projections skip loans --build 1 --position 7`", "can't take the place of the one in use: somebody reads",
			},
		},
		"messages that need a newer build, among other dead letters": {
			func(s sight) sight {
				s.letters[lane{"default", "library.lending"}] = 3
				s.newer = map[lane]subscription.NewerLetters{{"default", "library.lending"}: {Count: 2, Needs: "Library.LoanPlaced.v2"}}
				return s
			},
			[]string{"dead_letters degraded subscription library.lending", "dead_letters_newer degraded subscription library.lending"},
			[]string{"1 dead letter of it", "2 dead letters of it wait for a build that knows Library.LoanPlaced.v2", "Deploy such a build", "even if they are replayed"},
		},
		"messages that need several newer builds": {
			func(s sight) sight {
				s.letters[lane{"default", "library.lending"}] = 5
				s.newer = map[lane]subscription.NewerLetters{{"default", "library.lending"}: {Count: 5, Needs: "Library.LoanPlaced.v2", More: 2}}
				return s
			},
			[]string{"dead_letters_newer degraded subscription library.lending"},
			[]string{"5 dead letters of it wait for a build that knows Library.LoanPlaced.v2, or 2 other names, with what", "`waybill dead-letters list {only} --reason newer_version` shows which needs what. Deploy such"},
		},
		"projections after a deployment that was taken back": {
			func(s sight) sight {
				stopped := &projection.Failure{Position: 7, Event: "Library.LoanPlaced.v2 m-1", Error: "newer", Tries: 3}
				s.projections = map[string]projectionsSight{"default": {builds: []projection.Progress{
					{Name: "loans", Build: 1, Version: 1, Status: projection.Old, Fed: true},
					{Name: "loans", Build: 2, Version: 2, Status: projection.Live},
					{Name: "fees", Build: 1, Version: 1, Status: projection.Old, Fed: true, Failure: stopped},
					{Name: "fees", Build: 2, Version: 2, Status: projection.Live},
					{Name: "gone", Build: 2, Version: 2, Status: projection.Live},
				}}}
				return s
			},
			[]string{
				"projection_not_fed degraded projection loans, build 2", "projection_stopped degraded projection fees, build 1",
				"projection_not_fed degraded projection fees, build 2", "projection_not_fed degraded projection gone, build 2",
			},
			[]string{
				"if no build has it any more, `waybill projections switch loans --to 1` puts build 1 in use, which is fed",
				"let build 1 continue, which is fed and has stopped, then `waybill projections switch fees --to 1` puts it in use",
				"if no build has it any more, `waybill projections retire gone` removes it", "if a newer build has written the event, deploy one that reads it",
			},
		},
		"messages whose process has not begun": {
			func(s sight) sight {
				s.letters[lane{"default", "library.lending"}] = 1
				s.early = map[lane]subscription.EarlyLetters{{"default", "library.lending"}: {Count: 1}}
				return s
			},
			[]string{"dead_letters_early degraded subscription library.lending"},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.see(well()).has(t, c.want, c.says)
		})
	}
}

// The guide has every code and every alert, and no other.
func TestWatchdog_TheGuideHasAll(t *testing.T) {
	read := func(path, pattern string) (found []string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	const guide = "../docs/guides/alerts-and-health.md"
	sources, err := filepath.Glob("reasons*.go")
	require.NoError(t, err)
	var want []string
	for _, source := range append(sources, "projections.go") {
		want = append(want, read(source, `(?:Code: +"|limit\(")(\w+)"`)...)
		for _, limited := range read(source, `limit\("(\w+)"`) {
			want = append(want, limited+"_critical")
		}
	}
	slices.Sort(want)
	got := read(guide, "(?m)^\\| `(\\w+)`")
	got = slices.DeleteFunc(append(got, read(guide, "(?m)^\\| `\\w+`, `(\\w+)` \\| degraded")...), func(name string) bool { return strings.HasPrefix(name, "Waybill") })
	slices.Sort(got)
	require.Equal(t, want, got)
	require.Equal(t, read(alerts+".yaml", `- alert: (\w+)`), read(guide, "`(Waybill\\w+)`"))
}
