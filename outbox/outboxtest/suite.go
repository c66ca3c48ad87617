package outboxtest

import (
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
	test("Claim_A17_TakesPendingAndFailedThatIsDue", claimTakesDue) // S2-09, S2-36, C-22
	test("Claim_A18_SecondClaimTakesNothing", secondClaim)          // S2-09
	test("Claim_A19_KeyInSomebodysHandGivesNothing", keyInHand)     // C-24, C-32, C-45
	test("Claim_A22_S3_10_OnlyItsTarget", onlyItsTarget)            // C-11
	test("Claim_A23_NoLimitTakesNothing", noLimit)
	test("Claim_A24_RespectsLimitAndKeepsLeadingRuns", respectsLimit) // C-23
	test("Claim_S3_22_MarksTheRow", marksTheRow)
	test("Claim_S4_06_S4_09_OldestFirstAndPastBlockedHeads", pastBlockedHeads) // S2-09, C-29
	test("Claim_F_05_FailedHeadHoldsItsKeyAndNothingElse", failedHead)         // S2-34, S2-35, C-24, C-32
	test("Claim_NeedsARunningLeaseOfItsOwn", needsLease)                       // S2-09, C-44
	test("Claim_CarriesTheMessage", carriesTheMessage)                         // S2-16
	test("Claim_A25_ConcurrentWorkersShareWithoutOverlap", concurrentClaims)   // S2-10, S4-10
	test("Settle_S3_23_ClearsTheLock", settleClears)                           // S2-36, S4-13
	test("Settle_A37_PublishedClearsTheError", settleClearsError)              // S4-13
	test("Settle_S4_07_LongErrorIsCut", longError)
	test("Settle_FailedRowIsDueAfterItsDelay", failedDelay)  // C-19, C-22
	test("Settle_OfAnotherClaimChangesNothing", staleSettle) // C-25
	test("Settle_ToleratesMissingRows", missingRows)
	test("Settle_HeldRowHoldsItsKey", heldRow) // C-24
	test("Settle_DeleteOnPublishKeepsCounting", deleteOnPublish)
	test("Takeover_S3_24_RowsOfADeadWorkerGoOn", takeover)     // S2-29, S2-30, C-45
	test("Takeover_F_13_LateSettleChangesNothing", lateSettle) // S2-33, C-25, C-44
	test("Lease_FencesAreNeverUsedTwice", fences)
	test("Lease_F_06_F_19_NobodyTakesFromARunningLease", runningLease) // S2-13, S2-32, C-45
	test("Lease_F_19_RenewalExtendsOnlyItsOwn", renewal)               // S2-30, S2-33
	test("Lease_ReleasedPartitionsAreFreeAtOnce", release)             // C-45
	test("Lease_RefenceEndsAClaimNobodyKnowsOf", refence)
	test("LifeCycle_TheDatabaseRefusesOtherEdges", edges)
	test("Partitions_ArePropertyOfTheDatabase", partitionCount)
	test("Row_F60_OneRowPerMessageAndTarget", oneRowPerMessageAndTarget) // C-03
	test("Stats_CountPerTarget", stats)                                  // C-06, C-07
	test("Find_S3_30_OperatorQueries", find)
	test("Operate_A49_RetryMakesFailedAndAbandonedPending", retryVerb) // C-19
	test("Operate_A49_A50_S3_14_OtherStatesAreRefused", refusedVerbs)
	test("Operate_A50_PriorityOfPendingAndFailed", priorityVerb)
	test("Operate_AbandonLetsFollowersGo", abandonVerb) // C-19
	test("Operate_HeldHeadIsRetriedOrSkipped", heldVerbs)
	test("Settle_HandedBackKeepsItsLosses", handedBack)
	test("Quarantine_LostTwiceGoesAlone", quarantineAlone)
	test("Quarantine_A30_D2_FiveCrashesEndARow", crashesEnd)
	test("Purge_RemovesOnlyWhatHasExpired", purge) // C-27
	test("Claim_A21_DueFromItsInstantOn", dueInstant)
	test("Claim_D9_BytesAndTimesComeAsTheyWere", bytesAndTimes)
	test("Claim_F_08_OrderIsNoClocks", orderIsSeq)
	test("Claim_S3_20_F_11_OneOfManyGetsARow", oneOfMany)
	test("Takeover_F_09_F_12_RecoveredRowsComeFirst", recoveredRowsFirst)
	test("Lease_A20_FreeFromItsEndOn", leaseEnd)
	test("Lease_F_17_ConcurrentWorkersShareWithoutOverlap", concurrentAcquires)
	test("Purge_S3_18_EachRetentionIsItsOwn", retentions)
	test("LifeCycle_S3_14_F_34_RandomHistories", randomHistories)
	test("TakeTurn_OncePerInterval", takeTurn)
	test("Settle_S2_07_AllOrNone", settleAllOrNone)
	test("Claim_S2_09_C_24_EligibleOrNot", eligible)
	test("Claim_S2_10_S4_10_ManyWorkersManyRounds", manyWorkers)
	test("Stats_S2_13_WhatNobodyPublishes", nobodyPublishes)
	test("Settle_S2_19_S4_12_C_18_FiveFailures", fiveFailures)
	test("Find_S2_20_FailedSayWhy", failedSayWhy)
	test("Claim_S2_41_ALongKeyHidesNoOther", longKey)
	test("Settle_S2_49_ErrorTextComesBack", errorText)
	test("Find_C_01_C_02_FoundUntilRemoved", foundUntilRemoved)
	test("Row_C_03_OneOfTwoWritersIsRefused", twoWriters)
	test("Takeover_C_10_S2_30_AllOrNothing", takeoverAllOrNothing)
	test("Operate_C_19_RescheduledOrCancelled", rescheduled)
	test("Row_C_21_AnyBytesAreCarried", anyBytes)
	test("Claim_C_23_LimitUnderMatchingOver", limits)
	test("Settle_C_25_StaleDeleteRemovesNothing", staleDelete)
	test("Claim_C_26_PassesLockedPartitions", lockedPartitions)
	test("Purge_C_27_WhatIsInHandStays", purgeLeavesWhatIsInHand)
	test("Claim_C_28_ARetryIsClaimedOnce", retryOnce)
	test("Claim_C_31_OldestFirstAcrossPartitions", oldestAcrossPartitions)
	test("Claim_A43_PrioritiesFirst", prioritiesFirst)
	test("Claim_A42_D6_NeverWithinAKey", neverWithinAKey)
	test("Claim_A64_NobodyStarves", nobodyStarves)
	test("Claim_A63_A64_BehindAFlood", behindAFlood)
	test("Lease_C_42_AMissedRenewalLosesNothing", missedRenewal)
	test("Lease_C_43_RacingWorkersShareEvenly", racingWorkers)
	test("Purge_A67_F_48_OnlyWhatIsEligible", onlyEligible) // S1-19, S2-25
	test("Purge_F_48_HeldUntilSkipped", heldUntilSkipped)
	test("Purge_A67_F_47_BacklogOfManyBatches", backlogOfBatches)
	test("Purge_S1_19_ExpiredOutOfTurn", expiredOutOfTurn)
	test("Purge_S2_25_KeptForEver", keptForEver) // S2-48
	test("Purge_S2_25_KeptRowsHideNothing", keptRowsHideNothing)
	test("Purge_F_47_WaitsForNobody", purgeOfAnother)
	test("Purge_F_48_AndAnOperator", purgeAndOperator)
	test("Settle_S1_16_EachRowItsOwn", settledMixed)
	test("Stats_F_50_PublishedIsCounted", publishedIsCounted)
	test("Stats_S2_22_OfNothing", statsOfNothing)
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
	other.CloudEvent = `{"id":"1","subject":"ü \"x\""}`
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
	require.Equal(t, map[string]string{"id": "1", "subject": `ü "x"`}, c.Rows[1].Message.CloudEvent)
	require.NotContains(t, c.Rows[1].Message.Headers, "tenant-id")
	require.NotContains(t, c.Rows[1].Message.Headers, "correlation-id")
}

func concurrentClaims(t *testing.T, b *Bench) {
	b.Insert(Numbered("k", 400)...)
	var mu sync.Mutex
	seen := map[int64]int{}
	var wg sync.WaitGroup
	for _, name := range []string{"w1", "w2", "w3", "w4"} {
		leases := b.Worker(name, Partitions/4, time.Minute).Leases
		wg.Go(func() {
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
