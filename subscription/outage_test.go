package subscription

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A database that has a connection for some and for others none answers and fails by turns: the log
// has a line of that every half minute, and of one that stays away it has one at the latest then.
func TestOutage_OneThatComesAndGoesIsToldOfSparingly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o outage
		begins, ends := 0, 0
		fail := func() {
			if o.begin() {
				begins++
			}
		}
		answer := func() {
			if _, tell := o.end(); tell {
				ends++
			}
		}
		for range 100 { // 20 s
			fail()
			<-time.After(2 * doubtful)
			answer()
			require.False(t, o.on())
		}
		require.Equal(t, []int{1, 1}, []int{begins, ends})
		require.EqualValues(t, 200, o.changes.Load(), "each counts all the same")

		fail()
		begin := time.Now()
		for begins < 2 {
			<-time.After(time.Second)
			fail()
		}
		require.LessOrEqual(t, time.Since(begin), tellAgain, "it stays away")
		answer()
		require.Equal(t, []int{2, 2}, []int{begins, ends})

		<-time.After(tellAgain)
		fail()
		fail()
		require.Equal(t, 3, begins, "the next one")
		answer() // may be from before
		require.True(t, o.on())
		require.Equal(t, 2, ends)
	})
}
