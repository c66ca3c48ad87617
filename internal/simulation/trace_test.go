package simulation

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// step is one of the running code, as the model takes it.
type step struct {
	what   string
	at     time.Time
	ghosts map[token]bool
	take   func(*machine) error
}

// recorder keeps the steps of a schedule.
type recorder struct{ steps []step }

// takes has the model take a step, or refuse it.
func (w *world) takes(what string, take func(*machine) error) {
	if w.machine == nil {
		return
	}
	s := step{what, time.Now(), w.ghosts, take}
	if err := s.run(w.machine); err != nil {
		w.theft("no step of the model: %v", err)
	}
	if w.recorder != nil {
		s.ghosts = maps.Clone(w.ghosts)
		w.recorder.steps = append(w.recorder.steps, s)
	}
}

func (s step) run(m *machine) error {
	m.now, m.ghosts = s.at, s.ghosts
	return s.take(m)
}

// refusal is the first step of a trace that the model doesn't have.
func refusal(steps []step) (at int, err error) {
	m := newMachine()
	for i, s := range steps {
		if err := s.run(m); err != nil {
			return i, err
		}
	}
	return len(steps), nil
}

// trace is what the code did in the schedule of a seed.
func trace(t *testing.T, seed uint64) (steps []step) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := planOf(seed)
		p.epoch = time.Now()
		w := newWorld(t, p, nil)
		w.recorder = &recorder{}
		d := &director{w: w, random: rand.New(rand.NewPCG(p.seed, 2))}
		d.run()
		require.Empty(t, w.judge().Violations, "seed %d", seed)
		steps = w.recorder.steps
	})
	return steps
}

var kindsOfStep = []string{"join", "take", "release", "claim", "settle", "reap", "leave", "commit", "skip", "hold", "retry", "send"}

// Each step of the running code is one of model/relay.pml, and a trace of which one is
// missing isn't: whatever kind of step it is, the model refuses what comes behind it. Nor is
// one with a call of what is settled.
// Conformance: C-97.
func TestTraces_AreOfTheModelAndRefusedWithoutAStep(t *testing.T) {
	least, most := uint64(50), uint64(5_000)
	if long() {
		least = most
	}
	taken, refused := map[string]int{}, map[string]int{}
	all := func() bool {
		return !slices.ContainsFunc(kindsOfStep, func(what string) bool { return refused[what] == 0 })
	}
	for seed := uint64(0); seed < least || seed < most && !all(); seed++ {
		steps := trace(t, seed)
		at, err := refusal(steps)
		require.NoError(t, err, "seed %d: step %d of %d", seed, at, len(steps))
		last := map[string]int{}
		for i, s := range steps {
			taken[s.what]++
			last[s.what] = i
		}
		for what, i := range last {
			if _, err := refusal(slices.Delete(slices.Clone(steps), i, i+1)); err != nil {
				refused[what]++
			}
		}
		if i, sent := last["send"]; sent {
			if _, err := refusal(append(slices.Clone(steps), steps[i])); err != nil {
				refused["send"]++ // when all is settled
			}
		}
	}
	t.Logf("steps %v; traces without one that were refused %v", taken, refused)
	for _, what := range kindsOfStep {
		require.NotZero(t, refused[what], "every trace without a %s is taken; steps: %v", what, taken)
	}
}
