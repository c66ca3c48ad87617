package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// S1-01, S4-21: with a broker that is down or answers nothing commits take as long as with
// one that answers, within a tenth in the middle. All three are measured in turns in one
// run, so that what else the machine does meets them alike; the margin is for it, and would
// not hide that a commit waits for a broker, whose outages here last for the whole turn.
func TestCommits_S1_01_S4_21_TakeAsLongWhateverTheBrokerDoes(t *testing.T) {
	const rounds, commits = 10, 20
	b := setup(t)
	b.start(b.config())
	sold := 0
	published := func() bool {
		return len(b.main.Messages("sales.sale")) == sold && len(b.partner.Messages("sales.sale")) == sold
	}
	var took [3][]time.Duration
	for range rounds {
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
	}
	for _, all := range took {
		slices.Sort(all)
	}
	at := func(mode int, p float64) time.Duration { return took[mode][int(p*float64(len(took[mode])-1))] }
	for mode, name := range []string{"answers", "is silent", "is down"} {
		t.Logf("the broker %s: p50 %v, p99 %v", name, at(mode, 0.5), at(mode, 0.99))
		require.LessOrEqual(t, at(mode, 0.5), at(0, 0.5)*11/10+500*time.Microsecond, "p50 while the broker %s", name)
		require.LessOrEqual(t, at(mode, 0.99), 2*at(0, 0.99)+20*time.Millisecond, "p99 while the broker %s", name)
	}
}
