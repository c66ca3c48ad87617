package outboxtest

import (
	"testing"
	"time"

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
	test("Lease_N1_TheDeadAreForgotten", theDead)
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
	test("Change_A86_C_17_ByFilter", changeByFilter)
	test("Change_A86_HeldRowsAreSkipped", changeSkips)
	test("Change_C_17_Rate", changeRate)
	test("Change_C_17_RefusedWhole", changeRefused)
	test("Change_C_17_OperatorsTogether", changeTogether)
	test("Change_C_17_GoesOnAfterAnEnd", changeInterrupted)
	test("Find_S3_30_WhateverTheFilterHolds", findHostile)
	test("Find_S3_30_ByStatus", findByStatus)
	test("Message_S3_30_AllItsRows", messageOf)
	test("Owners_WhoHasWhat", owners)
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
	test("CleanUp_WhatAnOperatorWantsGone", cleanUp)
	test("CleanUp_GoesOnAfterAnEnd", cleanUpInterrupted)
	test("Settle_S1_16_EachRowItsOwn", settledMixed)
	test("Stats_F_50_PublishedIsCounted", publishedIsCounted)
	test("Stats_S2_22_OfNothing", statsOfNothing)
}

func published() outbox.Outcome { return outbox.Outcome{Status: outbox.Published} }

func failed(after time.Duration) outbox.Outcome {
	return outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "no", After: after}
}
