package waybilltest

import (
	"testing"
	"time"
)

// On is k for another test.
func (k *Kit) On(t testing.TB) *Kit {
	k.t = t
	return k
}

// Patience is how long Settle waits.
func (k *Kit) Patience(d time.Duration) *Kit {
	k.patience = d
	return k
}

// Points are the first n of a service that does nothing but commit.
func Points(n int) (all []point) {
	for i := range n {
		all = append(all, point{after: i%2 == 1, kind: commit, n: i/2 + 1})
	}
	return all
}

// Chosen are those that Crash tries.
func Chosen(all []point) []point { return evenly(all, maxCrashes) }
