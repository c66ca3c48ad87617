package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// S1-01, S4-21: with a broker that is down or answers nothing commits take as long as with
// one that answers, within a tenth in the middle. All three are measured in turns in one
// run. What else the machine does meets one of them more than another in a few turns, and
// all of them alike in many: it is measured until they agree, for at most 40 rounds. A
// commit that waits for a broker agrees in none, as each outage lasts for a whole turn.
func TestCommits_S1_01_S4_21_TakeAsLongWhateverTheBrokerDoes(t *testing.T) {
	const fewest, most, commits = 6, 40, 20
	b := setup(t)
	b.start(b.config())
	sold := 0
	published := func() bool {
		return len(b.main.Messages("sales.sale")) == sold && len(b.partner.Messages("sales.sale")) == sold
	}
	var took [3][]time.Duration
	for round := 1; ; round++ {
		for mode, begin := range []func() (end func()){
			func() func() { return func() {} },
			b.main.Stall,
			func() func() {
				b.main.SetOutage(true)
				return func() { b.main.SetOutage(false) }
			},
		} {
			end := begin()
			for range commits {
				from := time.Now()
				b.sell(1)
				took[mode] = append(took[mode], time.Since(from))
			}
			sold += commits
			if mode > 0 {
				require.False(t, published(), "the broker takes nothing")
			}
			end()
			eventually(t, published)
		}
		if round < fewest {
			continue
		}
		apart := takeLonger(took)
		if apart == "" {
			t.Logf("they agree after %d rounds", round)
			return
		}
		require.Less(t, round, most, apart)
	}
}

// takeLonger says by how much commits take longer with a broker that is silent or down, if
// it is more than a tenth in the middle, or more than twice in the slowest hundredth.
func takeLonger(took [3][]time.Duration) string {
	at := func(mode int, p float64) time.Duration {
		all := slices.Sorted(slices.Values(took[mode]))
		return all[int(p*float64(len(all)-1))]
	}
	p50, p99 := at(0, 0.5), at(0, 0.99)
	for mode, broker := range map[int]string{1: "silent", 2: "down"} {
		if m, h := at(mode, 0.5), at(mode, 0.99); m > p50*11/10+500*time.Microsecond || h > 2*p99+20*time.Millisecond {
			return fmt.Sprintf("p50 %v and p99 %v with a broker that is %s, %v and %v with one that answers", m, h, broker, p50, p99)
		}
	}
	return ""
}
