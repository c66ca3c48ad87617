package whole

import (
	"testing"

	"github.com/waybill-go/waybill/internal/simulation/kit"
)

// always are patches that change no rule: a bubble's time passes only while everybody waits
// for something that the bubble knows of, and a lock isn't such a thing; and what is left to
// chance has to come from the seed.
var always = []kit.Patch{
	{File: "../../../subscription/runner.go", Old: "alone    sync.RWMutex", New: "alone    turn"},
	{File: "../../../subscription/runner.go", Old: "rand.Float64()", New: "chance()"},
	{File: "../../../subscription/runner.go", Old: "\t\"math/rand/v2\"\n", New: ""},
	{File: "../../../subscription/waiting.go", Old: "\tmu   sync.Mutex\n\tn    int64", New: "\tmu   turn\n\tn    int64"},
	{File: "../../../subscription/waiting.go", Old: "\t\"sync\"\n", New: ""},
	{File: "../../../uow/manager.go", Old: "rand.N(longest)", New: "time.Duration(time.Now().UnixNano()*31) % longest"},
	{File: "../../../uow/manager.go", Old: "\t\"math/rand/v2\"\n", New: ""},
}

// turns is what these patches need.
const turns = `package subscription

import (
	"context"
	"sync"
	"time"
)

// turn is a lock, for many or for one.
type turn struct {
	mu      sync.Mutex
	readers int
	writer  bool
	changed chan struct{}
}

func (t *turn) wait(free func() bool, take func()) {
	for {
		t.mu.Lock()
		if free() {
			take()
			t.mu.Unlock()
			return
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		<-changed
	}
}

func (t *turn) leave(give func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	give()
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (t *turn) Lock()    { t.wait(func() bool { return !t.writer && t.readers == 0 }, func() { t.writer = true }) }
func (t *turn) Unlock()  { t.leave(func() { t.writer = false }) }
func (t *turn) RLock()   { t.wait(func() bool { return !t.writer }, func() { t.readers++ }) }
func (t *turn) RUnlock() { t.leave(func() { t.readers-- }) }

// chance is a number that depends on nothing but the bubble's time.
func chance() float64 { return float64(time.Now().UnixNano()%9973) / 9973 }

var _ context.Context
`

// program builds this package's tests with all patches.
func program(t *testing.T) string {
	t.Helper()
	return kit.Build(t, always, map[string]string{"../../../subscription/simulation.go": turns})
}
