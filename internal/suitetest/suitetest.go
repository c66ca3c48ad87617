// Package suitetest is what the suites for adapters have in common: a subtest that fails says
// which contract was broken, what that means, and what to do.
package suitetest

import (
	"fmt"
	"testing"
)

// Contract is what a subtest holds an adapter to.
type Contract struct {
	Says   string // The contract, in one sentence.
	Breaks string // What can't be kept without it.
	Remedy string
}

// Of is a contract by its parts: what it says, what breaks without it, and the remedy.
func Of(says, breaks, remedy string) Contract {
	return Contract{Says: says, Breaks: breaks, Remedy: remedy}
}

func (c Contract) String() string {
	return fmt.Sprintf("contract: %s\nwithout it: %s\nwhat to do: %s", c.Says, c.Breaks, c.Remedy)
}

// Check runs a subtest. If it fails, its log ends with the contract.
func Check(t *testing.T, name string, c Contract, test func(t *testing.T)) {
	t.Helper()
	if c.Says == "" || c.Breaks == "" || c.Remedy == "" {
		t.Errorf("no contract is written for %s", name)
	}
	t.Run(name, func(t *testing.T) {
		t.Cleanup(func() { // Runs last: also for what fails while others clean up.
			if t.Failed() {
				t.Logf("%s\n%s", name, c)
			}
		})
		test(t)
	})
}
