package kafka

import (
	"log/slog"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// spread is how many partitions topics have, as the clients that publish know it: each learns
// of more at another time.
type spread struct {
	mu     sync.Mutex
	logger *slog.Logger
	known  map[string]int
}

func newSpread(logger *slog.Logger) *spread { return &spread{logger: logger, known: map[string]int{}} }

// partitioner is Java's, by key.
func (s *spread) partitioner() kgo.Partitioner {
	return &teller{kgo.StickyKeyPartitioner(nil), s}
}

// teller is a partitioner that tells s of how many partitions it chooses.
type teller struct {
	kgo.Partitioner
	spread *spread
}

func (t *teller) ForTopic(topic string) kgo.TopicPartitioner {
	return &topicTeller{t.Partitioner.ForTopic(topic), topic, t.spread, 0}
}

type topicTeller struct {
	kgo.TopicPartitioner
	topic  string
	spread *spread
	last   int
}

func (t *topicTeller) Partition(r *kgo.Record, n int) int {
	if n != t.last {
		t.last = n
		t.spread.learn(t.topic, n)
	}
	return t.TopicPartitioner.Partition(r, n)
}

// learn takes in that a topic has n partitions. That it has more than before is logged: whoever
// added them may not know what it does to keys.
func (s *spread) learn(topic string, n int) {
	s.mu.Lock()
	before := s.known[topic]
	s.known[topic] = max(n, before)
	s.mu.Unlock()
	if before > 0 && n > before {
		s.logger.Warn("kafka: partitions were added to a topic that is published to: keys move to others of them, and what consumers haven't handled yet of a key may be handled after what is published now; stop publishing and let consumers finish before partitions are added",
			"topic", topic, "before", before, "partitions", n)
	}
}
