package outboxtest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/outbox"
)

// Run is the suite. open gives each test an empty database of its own.
func Run(t *testing.T, open func(t *testing.T) Database) {
	test := func(name string, f func(t *testing.T, b *Bench)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, Open(t, open(t)))
		})
	}
	test("Claim_A17_TakesPendingAndFailedThatIsDue", claimTakesDue)
	test("Claim_A18_SecondClaimTakesNothing", secondClaim)
	test("Claim_A19_KeyInSomebodysHandGivesNothing", keyInHand)
	test("Claim_A22_S3_10_OnlyItsTarget", onlyItsTarget)
	test("Claim_A23_NoLimitTakesNothing", noLimit)
	test("Claim_A24_RespectsLimitAndKeepsLeadingRuns", respectsLimit)
	test("Claim_S3_22_MarksTheRow", marksTheRow)
	test("Claim_S4_06_S4_09_OldestFirstAndPastBlockedHeads", pastBlockedHeads)
	test("Claim_FailedHeadHoldsItsKeyAndNothingElse", failedHead)
	test("Claim_NeedsARunningLeaseOfItsOwn", needsLease)
	test("Claim_CarriesTheMessage", carriesTheMessage)
	test("Claim_ConcurrentWorkersShareWithoutOverlap", concurrentClaims)
	test("Settle_S3_23_ClearsTheLock", settleClears)
	test("Settle_A37_PublishedClearsTheError", settleClearsError)
	test("Settle_S4_07_LongErrorIsCut", longError)
	test("Settle_FailedRowIsDueAfterItsDelay", failedDelay)
	test("Settle_OfAnotherClaimChangesNothing", staleSettle)
	test("Settle_ToleratesMissingRows", missingRows)
	test("Settle_HeldRowHoldsItsKey", heldRow)
	test("Settle_DeleteOnPublishKeepsCounting", deleteOnPublish)
	test("Takeover_S3_24_RowsOfADeadWorkerGoOn", takeover)
	test("Takeover_LateSettleChangesNothing", lateSettle)
	test("Lease_FencesAreNeverUsedTwice", fences)
	test("Lease_NobodyTakesFromARunningLease", runningLease)
	test("Lease_RenewalExtendsOnlyItsOwn", renewal)
	test("Lease_ReleasedPartitionsAreFreeAtOnce", release)
	test("Lease_RefenceEndsAClaimNobodyKnowsOf", refence)
	test("LifeCycle_TheDatabaseRefusesOtherEdges", edges)
	test("Partitions_ArePropertyOfTheDatabase", partitionCount)
	test("Row_F60_OneRowPerMessageAndTarget", oneRowPerMessageAndTarget)
	test("Stats_CountPerTarget", stats)
	test("Find_S3_30_OperatorQueries", find)
	test("Purge_RemovesOnlyWhatHasExpired", purge)
	test("TakeTurn_OncePerInterval", takeTurn)
}

func published() outbox.Outcome { return outbox.Outcome{Status: outbox.Published} }

func failed(after time.Duration) outbox.Outcome {
	return outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no", After: after}
}

func claimTakesDue(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	require.Equal(t, []string{"a", "b", "c"}, Keys(c))
	require.Zero(t, w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: -time.Second},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true}))
	again := w.Claim(10)
	require.Equal(t, []string{"a", "c"}, Keys(again))
	require.Equal(t, 2, again.Rows[0].Attempts)
	require.Equal(t, 1, again.Rows[1].Attempts, "what was handed back costs nothing")
	require.Greater(t, again.Next, 50*time.Minute, "the failed row that isn't due says when it will be")
}

func secondClaim(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	require.Len(t, w.Claim(10).Rows, 2)
	require.Empty(t, w.Claim(10).Rows)
}

func keyInHand(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(10)
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)), "a has an unsettled call")
	require.Zero(t, w.Settle(first, All(first, published())...))
	require.Equal(t, []string{"a"}, Keys(w.Claim(10)))
}

func onlyItsTarget(t *testing.T, b *Bench) {
	mine, other := Row("a"), Row("b")
	other.TargetBroker = "partner"
	b.InsertRows(mine, other)
	require.Equal(t, []string{"a"}, Keys(b.Worker("w1", Partitions, time.Minute).Claim(10)))
}

func noLimit(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	require.Empty(t, w.Claim(0).Rows)
	require.Empty(t, w.Claim(-1).Rows)
	require.Equal(t, []outbox.Status{outbox.Pending}, b.Statuses())
}

func respectsLimit(t *testing.T, b *Bench) {
	b.Insert("a", "b", "a", "a", "b", "c")
	w := b.Worker("w1", Partitions, time.Minute)
	first := w.Claim(3)
	require.Equal(t, []string{"a", "b", "a"}, Keys(first))
	require.Equal(t, []string{"c"}, Keys(w.Claim(3)), "a and b have unsettled calls")
	w.Settle(first, All(first, published())...)
	require.Equal(t, []string{"a", "b"}, Keys(w.Claim(3)))
}

func marksTheRow(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	before := b.Entries()[0]
	require.Equal(t, outbox.Pending, before.Status)
	require.Zero(t, before.Attempts)
	require.Nil(t, before.LastAttemptAt)
	c := w.Claim(10)
	row := b.Entries()[0]
	require.Equal(t, outbox.Processing, row.Status)
	require.Equal(t, "w1", row.LockedBy)
	require.Equal(t, 1, row.Attempts)
	require.Equal(t, c.ID, row.ClaimID)
	require.NotNil(t, row.LockedUntil)
	require.NotNil(t, row.LastAttemptAt)
	// By the database's clock: the lease of a minute began just before the claim.
	require.InDelta(t, time.Minute.Seconds(), row.LockedUntil.Sub(*row.LastAttemptAt).Seconds(), 20)
	for _, l := range w.Leases {
		if l.Partition == row.Partition {
			require.Equal(t, l.Fence, row.Fence)
		}
	}
}

func pastBlockedHeads(t *testing.T, b *Bench) {
	b.Insert("bad")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(time.Hour))...)
	keys := make([]string, 450)
	for i := range keys {
		keys[i] = "bad"
	}
	b.Insert(keys...)
	b.Insert("x", "y", "x")
	require.Equal(t, []string{"x", "y", "x"}, Keys(w.Claim(10)), "450 rows behind a failed head hide nothing")
}

func failedHead(t *testing.T, b *Bench) {
	b.Insert("a", "b", "a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	// The head fails, the one behind it comes back unspent, the other key is done.
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Pending, Unspent: true})
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)))
	require.Zero(t, b.Entries()[2].Attempts)
}

func needsLease(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	b.Expire()
	c := w.Claim(10)
	require.Empty(t, c.Rows)
	require.True(t, c.Incomplete)

	forged := w
	forged.Leases = nil
	for _, l := range w.Leases {
		l.Fence += 1000
		forged.Leases = append(forged.Leases, l)
	}
	b.Exec("UPDATE outbox_partitions SET locked_until = NULL, locked_by = NULL")
	taken := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, taken.Leases, Partitions)
	require.Empty(t, w.Claim(10).Rows, "another one's lease")
	require.Empty(t, forged.Claim(10).Rows, "a fence that was never given")
	require.Len(t, taken.Claim(10).Rows, 1)
}

func carriesTheMessage(t *testing.T, b *Bench) {
	row := Row("a")
	row.Payload = []byte("{\"data\":\"\\u0000 'quoted' \\\\ ü\"}")
	row.TenantID, row.Traceparent, row.CausationID = "acme", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", newID()
	other := Row("b")
	other.Topic, other.CorrelationID = "elsewhere", ""
	b.InsertRows(row, other)
	c := b.Worker("w1", Partitions, time.Minute).Claim(10)
	require.Equal(t, broker.Message{
		ID: row.MessageID, Topic: "ordering.order", Key: "a", Body: row.Payload,
		Headers: map[string]string{
			"id": row.MessageID, "type": "Ordering.OrderPlaced.v1", "time": "2026-01-02T03:04:05.678000Z", "content-type": "application/json",
			"correlation-id": "c-a", "tenant-id": "acme", "traceparent": row.Traceparent,
		},
	}, c.Rows[0].Message)
	require.Equal(t, "elsewhere", c.Rows[1].Message.Topic)
	require.NotContains(t, c.Rows[1].Message.Headers, "tenant-id")
	require.NotContains(t, c.Rows[1].Message.Headers, "correlation-id")
}

func concurrentClaims(t *testing.T, b *Bench) {
	b.Insert(Numbered("k", 400)...)
	_, err := b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	var mu sync.Mutex
	seen := map[int64]int{}
	var wg sync.WaitGroup
	for _, name := range []string{"w1", "w2", "w3", "w4"} {
		wg.Go(func() {
			leases, _, err := b.Acquire(t.Context(), "default", name, Partitions/4, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			for {
				c, err := b.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: name, Leases: leases, Limit: 7, MaxAttempts: 5})
				if err != nil {
					t.Error(err)
					return
				}
				if len(c.Rows) == 0 {
					return
				}
				mu.Lock()
				for _, row := range c.Rows {
					seen[row.Seq]++
				}
				mu.Unlock()
				if _, err := b.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: All(c, published())}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 400)
	for seq, n := range seen {
		require.Equal(t, 1, n, "row %d", seq)
	}
}

func settleClears(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "y"},
		outbox.Outcome{Seq: c.Rows[3].Seq, Status: outbox.Pending, Unspent: true})
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Failed, outbox.Abandoned, outbox.Pending}, b.Statuses())
	for _, e := range b.Entries() {
		require.Empty(t, e.LockedBy, e.Status)
		require.Nil(t, e.LockedUntil, e.Status)
		require.Zero(t, e.Fence, e.Status)
		require.Zero(t, e.ClaimID, e.Status)
	}
	e := b.Entries()
	require.NotNil(t, e[0].PublishedAt)
	require.InDelta(t, 168, e[0].ExpiresAt.Sub(*e[0].PublishedAt).Hours(), 0.1)
	require.Equal(t, "transient", e[1].FailureClass)
	require.Nil(t, e[1].ExpiresAt)
	require.Equal(t, "y", e[2].LastError)
	require.NotNil(t, e[2].ExpiresAt)
	require.Nil(t, e[3].ExpiresAt)
}

func settleClearsError(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...)
	require.Equal(t, "no", b.Entries()[0].LastError)
	c = w.Claim(1)
	w.Settle(c, All(c, published())...)
	e := b.Entries()[0]
	require.Empty(t, e.LastError)
	require.Empty(t, e.FailureClass)
	require.Equal(t, 2, e.Attempts)
}

func longError(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	o := failed(time.Hour)
	o.Error = "it's \"so\" bad:\n\x00" + strings.Repeat("ü", 5000) + string([]byte{0xff})
	w.Settle(c, All(c, o)...)
	got := []rune(b.Entries()[0].LastError)
	require.Len(t, got, 2048)
	require.Contains(t, string(got), "it's \"so\" bad:\n")
}

func failedDelay(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	w.Settle(c, All(c, failed(time.Hour))...)
	e := b.Entries()[0]
	require.InDelta(t, 3600, e.AvailableAt.Sub(*e.LastAttemptAt).Seconds(), 20)
	require.Empty(t, w.Claim(1).Rows)
	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	require.Len(t, w.Claim(1).Rows, 1)
}

func staleSettle(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(1)
	other := c
	other.ID++
	require.Equal(t, 1, w.Settle(other, All(c, published())...))
	require.Equal(t, []outbox.Status{outbox.Processing}, b.Statuses())
	require.Zero(t, w.Settle(c, All(c, published())...))
	require.Equal(t, 1, w.Settle(c, All(c, failed(time.Hour))...), "a settled claim can't be settled again")
	require.Equal(t, []outbox.Status{outbox.Published}, b.Statuses())
}

func missingRows(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	b.Exec("DELETE FROM outbox WHERE seq = ?", c.Rows[0].Seq)
	require.Equal(t, 1, w.Settle(c, All(c, published())...))
	require.Equal(t, []outbox.Status{outbox.Published}, b.Statuses())
}

func heldRow(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: true},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"})
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, Keys(w.Claim(10)), "a is held, b is skipped")
	require.True(t, b.Entries()[0].Held)
	require.Nil(t, b.Entries()[0].ExpiresAt, "a held row is kept")
}

func deleteOnPublish(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	stale, err := b.Settle(t.Context(), outbox.Settlement{
		Claim: c.ID, Target: "default", Retention: outbox.Retention{Delete: true},
		Outcomes: []outbox.Outcome{{Seq: c.Rows[0].Seq, Status: outbox.Published}, {Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour}},
	})
	require.NoError(t, err)
	require.Zero(t, stale)
	require.Equal(t, []outbox.Status{outbox.Failed}, b.Statuses())
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, s["default"].Counts[outbox.Published])
	require.EqualValues(t, 1, s["default"].Counts[outbox.Failed])
}

func takeover(t *testing.T, b *Bench) {
	b.Insert("a", "a", "b")
	dead := b.Worker("dead", Partitions, time.Minute)
	require.Len(t, dead.Claim(2).Rows, 2)
	require.Empty(t, b.Worker("early", Partitions, time.Minute).Leases, "the lease still runs")
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(10)
	require.Equal(t, []string{"a", "a", "b"}, Keys(c))
	require.Equal(t, []int{2, 2, 1}, []int{c.Rows[0].Attempts, c.Rows[1].Attempts, c.Rows[2].Attempts})
	require.Equal(t, []int{1, 1, 0}, []int{c.Rows[0].Losses, c.Rows[1].Losses, c.Rows[2].Losses})
	// Settled, they have killed nobody: the lost claim is given back.
	heir.Settle(c, All(c, failed(time.Hour))...)
	require.Equal(t, []int{1, 1, 1}, []int{b.Entries()[0].Attempts, b.Entries()[1].Attempts, b.Entries()[2].Attempts})
	require.Zero(t, b.Entries()[0].Losses)
}

func lateSettle(t *testing.T, b *Bench) {
	b.Insert("a", "b")
	slow := b.Worker("slow", Partitions, time.Minute)
	late := slow.Claim(2)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, 2, slow.Settle(late, All(late, published())...), "after the takeover, before the next claim")
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, b.Statuses())
	c := heir.Claim(1)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "while the heir has one of them")
	heir.Settle(c, All(c, published())...)
	require.Equal(t, 2, slow.Settle(late, All(late, failed(time.Hour))...), "after the heir has published it")
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, b.Statuses())
}

func fences(t *testing.T, b *Bench) {
	seen := map[int64]bool{}
	for range 3 {
		w := b.Worker("w1", Partitions, time.Minute)
		require.Len(t, w.Leases, Partitions)
		for _, l := range w.Leases {
			require.False(t, seen[l.Fence])
			seen[l.Fence] = true
		}
		b.Expire()
	}
}

func runningLease(t *testing.T, b *Bench) {
	first := b.Worker("w1", 5, time.Minute)
	require.Len(t, first.Leases, 5)
	second := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, second.Leases, Partitions-5)
	require.Empty(t, b.Worker("w3", Partitions, time.Minute).Leases)
}

func renewal(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", 3, time.Minute)
	b.Expire() // ran out, and nobody came
	kept, err := b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, w.Leases, kept)
	m, err := b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, outbox.Membership{Workers: 1, Free: Partitions - 3}, m)

	b.Expire()
	other := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, other.Leases, Partitions)
	kept, err = b.Announce(ctx, b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
	require.NoError(t, err)
	require.Empty(t, kept, "they are another's now")

	b.Exec("UPDATE outbox_workers SET seen_until = " + past(b.DB))
	_, err = b.Announce(ctx, b.DB, "default", []string{"w2"}, nil, time.Minute)
	require.NoError(t, err)
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Equal(t, 1, m.Workers, "the dead are forgotten")
	require.NoError(t, b.Leave(ctx, "default", []string{"w2"}))
	m, err = b.Membership(ctx, "default")
	require.NoError(t, err)
	require.Zero(t, m.Workers)
}

func release(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases[:3]))
	heir := b.Worker("w2", Partitions, time.Minute)
	require.Len(t, heir.Leases, 3)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases), "what isn't its own stays")
	m, err := b.Membership(t.Context(), "default")
	require.NoError(t, err)
	require.Equal(t, Partitions-3, m.Free)
}

func refence(t *testing.T, b *Bench) {
	b.Insert("a")
	w := b.Worker("w1", Partitions, time.Minute)
	lost := w.Claim(1) // as if its answer had never come
	leases, err := b.Refence(t.Context(), "default", "w1", time.Minute)
	require.NoError(t, err)
	require.Len(t, leases, Partitions)
	require.Empty(t, w.Claim(1).Rows, "the old fences are worth nothing")
	require.Equal(t, 1, w.Settle(lost, All(lost, published())...))
	w.Leases = leases
	require.Len(t, w.Claim(1).Rows, 1)
}

func edges(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	for _, from := range outbox.Statuses() {
		for _, to := range outbox.Statuses() {
			if from == to {
				continue
			}
			b.Exec("DELETE FROM outbox")
			b.Insert("a")
			if from != outbox.Pending {
				c := w.Claim(1)
				if from != outbox.Processing {
					o := failed(time.Hour)
					o.Status = from
					w.Settle(c, All(c, o)...)
				}
			}
			require.Equal(t, []outbox.Status{from}, b.Statuses())
			claim := "NULL"
			if to == outbox.Processing {
				claim = "1"
			}
			_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox SET status = ?, claim_id = "+claim+", locked_by = "+claim, to)
			if from.CanBecome(to) {
				require.NoError(t, err, "%s to %s", from, to)
			} else {
				require.Error(t, err, "%s to %s", from, to)
			}
		}
	}
	_, err := b.DB.ExecContext(t.Context(), "UPDATE outbox SET status = 'lost'")
	require.Error(t, err)
}

func partitionCount(t *testing.T, b *Bench) {
	ctx := t.Context()
	n, err := outbox.Partitions(ctx, b.DB)
	require.NoError(t, err)
	require.Equal(t, Partitions, n)
	require.NoError(t, outbox.Migrate(ctx, b.DB, 0), "whatever is there")
	require.NoError(t, outbox.Migrate(ctx, b.DB, Partitions))
	err = outbox.Migrate(ctx, b.DB, 16)
	require.Equal(t, &outbox.PartitionsError{Have: Partitions, Want: 16}, err)
	require.ErrorContains(t, err, "configure 8")
	require.NoError(t, b.Check(ctx))
}

func oneRowPerMessageAndTarget(t *testing.T, b *Bench) {
	row := Row("a")
	b.InsertRows(row)
	query, err := outbox.Insert([]outbox.Row{row}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = b.DB.ExecContext(t.Context(), string(query))
	require.Error(t, err)
	row.TargetBroker = "partner"
	b.InsertRows(row)
	_, err = b.DB.ExecContext(t.Context(), "UPDATE outbox SET target_broker = NULL")
	require.Error(t, err, "a null would switch the uniqueness off")
}

func stats(t *testing.T, b *Bench) {
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, s)
	b.Insert("a", "b", "c")
	partner := Row("a")
	partner.TargetBroker = "partner"
	b.InsertRows(partner)
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(2)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Failed, Class: "transient", Error: "the broker's words", After: time.Hour})
	s, err = b.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[outbox.Status]int64{"pending": 1, "processing": 0, "published": 1, "failed": 1, "abandoned": 0}, s["default"].Counts)
	require.Equal(t, "the broker's words", *s["default"].LastError)
	require.Equal(t, []string{"w1"}, s["default"].LeaseOwners)
	require.NotNil(t, s["default"].OldestPending)
	require.Less(t, *s["default"].OldestPending, time.Minute)
	require.EqualValues(t, 1, s["partner"].Counts[outbox.Pending])
	require.Empty(t, s["partner"].LeaseOwners)
	require.Nil(t, s["partner"].LastError)
}

func find(t *testing.T, b *Bench) {
	ctx := t.Context()
	rows := b.Insert("a", "b", "c")
	partner := rows[0]
	partner.ID, partner.TargetBroker, partner.CausationID, partner.MessageType = newID(), "partner", newID(), "Ordering.OrderCancelled.v2"
	b.InsertRows(partner)
	w := b.Worker("w1", Partitions, time.Minute)
	w.Claim(1) // a
	c := w.Claim(1)
	w.Settle(c, All(c, failed(-time.Second))...) // b

	expect := func(f outbox.Filter, keysAndTargets ...string) {
		t.Helper()
		found, err := b.Find(ctx, f)
		require.NoError(t, err)
		var got []string
		for _, e := range found {
			got = append(got, e.PartitionKey+"@"+e.TargetBroker)
		}
		require.Equal(t, keysAndTargets, got)
	}
	expect(outbox.Filter{}, "a@default", "b@default", "c@default", "a@partner")
	expect(outbox.Filter{MessageID: rows[0].MessageID}, "a@default", "a@partner")
	expect(outbox.Filter{Type: "Ordering.OrderCancelled.v2"}, "a@partner")
	expect(outbox.Filter{CorrelationID: "c-b"}, "b@default")
	expect(outbox.Filter{CausationID: partner.CausationID}, "a@partner")
	expect(outbox.Filter{Stream: "ordering::order-c"}, "c@default")
	expect(outbox.Filter{Status: outbox.Processing}, "a@default")
	expect(outbox.Filter{RetryReady: true}, "b@default")
	expect(outbox.Filter{Stale: true})
	b.Expire()
	expect(outbox.Filter{Stale: true}, "a@default")
	expect(outbox.Filter{Limit: 2}, "a@default", "b@default")
	all := b.Entries()
	expect(outbox.Filter{Limit: 2, After: all[1].Seq}, "c@default", "a@partner")
	require.Equal(t, rows[0].OccurredAt, all[0].OccurredAt)
	require.Equal(t, rows[0].MessageID, all[0].MessageID)
}

func purge(t *testing.T, b *Bench) {
	b.Insert("a", "b", "c", "d", "e", "f")
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(5)
	w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[1].Seq, Status: outbox.Published},
		outbox.Outcome{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x"},
		outbox.Outcome{Seq: c.Rows[3].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: true},
		outbox.Outcome{Seq: c.Rows[4].Seq, Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour})
	n, err := b.Purge(t.Context(), 2)
	require.NoError(t, err)
	require.Zero(t, n)
	// Everything is old, also what must stay.
	b.Exec("UPDATE outbox SET expires_at = "+past(b.DB)+" WHERE seq <> ?", c.Rows[1].Seq)
	n, err = b.Purge(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Abandoned, outbox.Failed, outbox.Pending}, b.Statuses())
}

func takeTurn(t *testing.T, b *Bench) {
	var turns int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
			if err != nil {
				t.Error(err)
			}
			if mine {
				mu.Lock()
				turns++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, turns)
	b.Exec("UPDATE outbox_jobs SET due_at = " + past(b.DB))
	mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
	require.NoError(t, err)
	require.True(t, mine)
}
