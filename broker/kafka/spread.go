package kafka

import (
	"log/slog"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// spread is how many partitions topics have, as the clients that publish know it: each learns
// of another number at another time.
type spread struct {
	mu     sync.Mutex
	logger *slog.Logger
	known  map[string]int // What a client learned last.
}

func newSpread(logger *slog.Logger) *spread { return &spread{logger: logger, known: map[string]int{}} }

// partitioner is Java's, by key, for one client.
func (s *spread) partitioner() *teller {
	return &teller{kgo.StickyKeyPartitioner(nil), s, map[string]int{}}
}

// teller is a client's partitioner. It tells spread of how many partitions it chooses.
type teller struct {
	kgo.Partitioner
	spread *spread
	chosen map[string]int // Of how many partitions of a topic. The spread's mutex protects it.
}

// ForTopic is called once by a client for each of its topics.
func (t *teller) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicTeller{t.Partitioner.ForTopic(topic), topic, t, 0}
}

// differs says that another client has learned since of another number of partitions than this
// one chooses of. With both in use, a key's messages would go to two partitions by turns.
func (t *teller) differs() bool {
	t.spread.mu.Lock()
	defer t.spread.mu.Unlock()
	for topic, n := range t.chosen {
		if t.spread.known[topic] != n {
			return true
		}
	}
	return false
}

// forget is for the partitioner of a new client, which knows no topic yet.
func (t *teller) forget() {
	t.spread.mu.Lock()
	defer t.spread.mu.Unlock()
	clear(t.chosen)
}

type topicTeller struct {
	kgo.TopicPartitioner
	topic  string
	teller *teller
	last   int
}

func (t *topicTeller) Partition(r *kgo.Record, n int) int {
	if n != t.last {
		t.last = n
		t.teller.learn(t.topic, n)
	}
	return t.TopicPartitioner.Partition(r, n)
}

// learn takes in that a topic has n partitions. That it has more than before is logged: whoever
// added them may not know what it does to keys.
func (t *teller) learn(topic string, n int) {
	s := t.spread
	s.mu.Lock()
	before := s.known[topic]
	s.known[topic], t.chosen[topic] = n, n
	s.mu.Unlock()
	if before > 0 && n > before {
		s.logger.Warn("kafka: partitions were added to a topic that is published to: keys move to others of them, and what consumers haven't handled yet of a key may be handled after what is published now; stop publishing and let consumers finish before partitions are added",
			"topic", topic, "before", before, "partitions", n)
	}
}
