package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// S1-01, S4-21: with a broker that is down or answers nothing commits succeed as with one that
// answers: none waits for it, or it would never end. How long they take is shown for each, in
// turns; bench measures it, as another machine may be busy with anything.
func TestCommits_S1_01_S4_21_TakeAsLongWhateverTheBrokerDoes(t *testing.T) {
	const rounds, commits = 6, 20
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
	for mode, broker := range []string{"answers", "is silent", "is down"} {
		all := slices.Sorted(slices.Values(took[mode]))
		t.Logf("p50 %v and p99 %v with a broker that %s", all[len(all)/2], all[len(all)*99/100], broker)
	}
}
