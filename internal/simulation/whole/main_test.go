// Package whole runs whole processes in a bubble of testing/synctest: real units of work
// feed the real relay, and real subscriptions handle what it publishes, on SQLite and on a
// broker with faults, where a seed decides all that is left to chance. seeds.md says what a
// schedule is, and has the seeds that find what the rules are for.
//
//	WAYBILL_SEED=17 go test ./internal/simulation/whole -run OneSeed -v
package whole

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// One processor, and no collection of garbage in the middle of a schedule: what a process
// does between two requests is then always in the same order.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20)
	dir, err := os.MkdirTemp("", "whole")
	if err != nil {
		panic(err)
	}
	built.dir = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func long() bool { return os.Getenv("WAYBILL_LONG") != "" }
