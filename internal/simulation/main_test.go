// Package simulation runs the real relay on a store in memory and a broker with faults, in
// a bubble of testing/synctest, where a seed decides all that is left to chance: which
// statement runs next, which is refused, lost or late, what the broker stores and answers,
// which process is killed, when time passes. The checker of the fault runs judges what is
// left, and model/relay.pml as a program judges each step. A seed that fails is made smaller.
//
//	WAYBILL_SEED=17 go test ./internal/simulation -run TestSimulation_OneSeed -v
//
// runs one schedule, says all that happened in it, and makes it smaller if it fails.
// WAYBILL_LONG makes it a million of them; WAYBILL_SCHEDULES and WAYBILL_FIRST say how many
// and from which seed on, so that several machines can share them. seeds.md has the seeds that
// find what the protocol's rules are for, and says which schedules are in transactions.
package simulation

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// One processor, and no collection of garbage in the middle of a schedule: what a process
// does between two statements is then always in the same order.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20) // a schedule that goes round and round doesn't take the machine along
	goleak.VerifyTestMain(m)
}

func long() bool { return os.Getenv("WAYBILL_LONG") != "" }
