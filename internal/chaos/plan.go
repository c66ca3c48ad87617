package chaos

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The kinds of faults. Those of --disturb have the names that the user gives them.
const (
	killFault            = "kill"
	stopFault            = "stop"
	cutPostgresFault     = "cut-postgres"
	silencePostgresFault = "silence-postgres"
	slowPostgresFault    = "slow-postgres"
	cutKafkaFault        = "cut-kafka"
	silenceKafkaFault    = "silence-kafka"
	slowKafkaFault       = "slow-kafka"
	clockFault           = "clock"
	restartPostgresFault = "restart-postgres"
	restartKafkaFault    = "restart-kafka"
)

// Kinds are the faults that need no command, in the order in which they are shown.
func Kinds() []string {
	return []string{
		killFault, stopFault, cutPostgresFault, silencePostgresFault, slowPostgresFault,
		cutKafkaFault, silenceKafkaFault, slowKafkaFault, clockFault, restartPostgresFault, restartKafkaFault,
	}
}

// weights say how often a fault comes beside others; one that isn't here has 1.
var weights = map[string]int{
	killFault: 6, stopFault: 6, cutPostgresFault: 2, silencePostgresFault: 2, slowPostgresFault: 2,
	cutKafkaFault: 2, silenceKafkaFault: 2, slowKafkaFault: 2, clockFault: 2,
}

// step is a fault of a plan.
type step struct {
	after time.Duration // the one before
	kind  string
	seat  int // whom it befalls
	lasts time.Duration
	ahead time.Duration // of a clock
}

// plan draws steps. What it draws depends on the seed, on which faults are on and on how many
// seats there are, and on nothing that happens.
type plan struct {
	random *rand.Rand
	kinds  []string // each as often as its weight
	seats  []int
	kafka  []int // seats whose processes talk to Kafka
}

func newPlan(seed uint64, kinds []string, seats, kafka []int) *plan {
	p := &plan{random: rand.New(rand.NewPCG(seed, 0)), seats: seats, kafka: kafka} //nolint:gosec // A plan is no secret.
	for _, kind := range kinds {
		p.kinds = append(p.kinds, slices.Repeat([]string{kind}, max(1, weights[kind]))...)
	}
	return p
}

func (p *plan) between(from, to time.Duration) time.Duration {
	return from + time.Duration(p.random.Int64N(int64(to-from)))
}

func (p *plan) next() step {
	s := step{after: p.between(300*time.Millisecond, 3*time.Second), kind: p.kinds[p.random.IntN(len(p.kinds))]}
	seats := p.seats
	if onKafka(s.kind) {
		seats = p.kafka
	}
	s.seat = seats[p.random.IntN(len(seats))]
	most := 12 * time.Second
	switch s.kind {
	case killFault:
		most = 4 * time.Second
	case stopFault:
		most = 3 * lease // beyond it, mostly
	}
	s.lasts = p.between(200*time.Millisecond, most)
	s.ahead = p.between(-15*time.Minute, 15*time.Minute).Truncate(time.Second)
	return s
}

// onPostgres says that a fault is one of the network between a process and PostgreSQL.
func onPostgres(kind string) bool {
	return strings.HasSuffix(kind, "-postgres") && kind != restartPostgresFault
}

// onKafka says the same of Kafka.
func onKafka(kind string) bool { return strings.HasSuffix(kind, "-kafka") && kind != restartKafkaFault }
