package outbox

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

// S2-35, S2-42, C-60, O1
func TestJudge(t *testing.T) {
	row := func(seq int64, key string) Claimed {
		return Claimed{Seq: seq, Attempts: 1, Message: broker.Message{Key: key}}
	}
	rows := []Claimed{row(1, "a"), row(2, "a"), row(3, "b")}
	unknown := broker.Classify(broker.Unknown, errors.New("no answer"))
	down := broker.Classify(broker.Unavailable, errors.New("nobody there"))
	behind := errors.New("behind a failure") // transient
	refused := errors.New("refused")
	never := broker.Classify(broker.Permanent, errors.New("too large"))
	noReplicas := broker.Scoped(broker.Transient, broker.ScopeTopic, errors.New("too few replicas"))
	out := func(seq int64, s Status, class, text string, after time.Duration, unspent bool) Outcome {
		return Outcome{Seq: seq, Status: s, Class: class, Error: text, After: after, Unspent: unspent}
	}
	ok := func(seq int64) Outcome { return Outcome{Seq: seq, Status: Published} }
	back := func(seq int64) Outcome { return Outcome{Seq: seq, Status: Pending, Unspent: true} }
	for name, c := range map[string]struct {
		errs       map[int]error
		want       []Outcome
		unanswered bool
	}{
		"all stored": {nil, []Outcome{ok(1), ok(2), ok(3)}, false},
		"the head is refused: it pays, its follower comes back, the other key is done": {
			map[int]error{0: refused, 1: behind},
			[]Outcome{out(1, Failed, "transient", "refused", time.Minute, false), back(2), ok(3)},
			false,
		},
		"the second of a key is refused": {
			map[int]error{1: refused},
			[]Outcome{ok(1), out(2, Failed, "transient", "refused", time.Minute, false), ok(3)},
			false,
		},
		"a permanent error abandons its row": {
			map[int]error{0: never, 1: behind},
			[]Outcome{out(1, Abandoned, "permanent", "too large", 0, false), back(2), ok(3)},
			false,
		},
		"nobody there: nobody pays, and one row shows it": {
			map[int]error{0: down, 1: down, 2: down},
			[]Outcome{out(1, Failed, "unavailable", "nobody there", 4*time.Second, true), back(2), back(3)},
			true,
		},
		"no answer at all: the same, whatever is said of rows behind": {
			map[int]error{0: unknown, 1: behind, 2: down},
			[]Outcome{out(1, Failed, "unknown", "no answer", 4*time.Second, true), back(2), back(3)},
			true,
		},
		"some were answered: who was not pays": {
			map[int]error{0: unknown, 1: behind},
			[]Outcome{out(1, Failed, "unknown", "no answer", time.Minute, false), back(2), ok(3)},
			false,
		},
		"a topic of its own is away: its row waits and doesn't pay": {
			map[int]error{2: down},
			[]Outcome{ok(1), ok(2), out(3, Failed, "unavailable", "nobody there", 4*time.Second, true)},
			false,
		},
		"O1: its topic misses replicas: its row waits and doesn't pay": {
			map[int]error{2: noReplicas},
			[]Outcome{ok(1), ok(2), out(3, Failed, "transient", "too few replicas", 4*time.Second, true)},
			false,
		},
		"O1: all of a topic is refused: nobody pays, and one row shows it": {
			map[int]error{0: noReplicas, 1: behind, 2: noReplicas},
			[]Outcome{out(1, Failed, "transient", "too few replicas", 4*time.Second, true), back(2), back(3)},
			true,
		},
		"a follower was stored all the same": {
			map[int]error{0: refused},
			[]Outcome{out(1, Failed, "transient", "refused", time.Minute, false), ok(2), ok(3)},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{}.WithDefaults()
			cfg.Retry.Jitter = -1
			v := verdict{cfg: cfg, random: func() float64 { return 0 }, outage: func(string) time.Duration { return 4 * time.Second }}
			f := v.judge(rows, c.errs)
			require.Equal(t, c.want, f.outcomes)
			require.Equal(t, c.unanswered, len(f.silent) > 0)
			require.Equal(t, len(c.errs) > 0, f.first != nil)
		})
	}
}
