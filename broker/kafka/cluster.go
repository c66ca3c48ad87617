package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// answerIn is how long a server may take to be connected to and to say where
// topics are, before the next one is asked.
const answerIn = 3 * time.Second

// cluster is what is known of servers and topics, for all producers.
type cluster struct {
	conf  *sarama.Config
	seeds []string

	mu      sync.Mutex
	servers map[int32]string // Address by id.
	topics  map[string]layout
}

// layout is what is known of a topic.
type layout struct {
	leaders []int32 // Ids by partition, -1 for none.
	asked   time.Time
}

func newCluster(conf *sarama.Config, seeds []string) *cluster {
	return &cluster{conf: conf, seeds: seeds, servers: map[int32]string{}, topics: map[string]layout{}}
}

// leaders are those of topic's partitions; nil if the topic isn't known.
func (c *cluster) leaders(topic string) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.topics[topic].leaders
}

// stale says that it is time to ask again: partitions may have been added.
func (c *cluster) stale(topics []string) bool {
	often := c.conf.Metadata.RefreshFrequency
	c.mu.Lock()
	defer c.mu.Unlock()
	return often > 0 && slices.ContainsFunc(topics, func(topic string) bool {
		return time.Since(c.topics[topic].asked) > often
	})
}

// leader is the address of the server that leads a partition now, or empty.
func (c *cluster) leader(tp topicPartition) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	leaders := c.topics[tp.topic].leaders
	if int(tp.partition) >= len(leaders) {
		return ""
	}
	return c.servers[leaders[tp.partition]]
}

// addresses are all that might answer, known servers first.
func (c *cluster) addresses() []string {
	c.mu.Lock()
	known := slices.Collect(maps.Values(c.servers))
	c.mu.Unlock()
	rand.Shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	for _, seed := range c.seeds {
		if !slices.Contains(known, seed) {
			known = append(known, seed)
		}
	}
	return known
}

// ask finds out over l about topics, and about all servers. A topic that the
// server refuses is in the map.
func (c *cluster) ask(ctx context.Context, l *link, topics []string) (map[string]sarama.KError, error) {
	request := sarama.NewMetadataRequest(c.conf.Version, topics)
	request.AllowAutoTopicCreation = false
	response, err := ask(ctx, l, func() (*sarama.MetadataResponse, error) { return l.broker.GetMetadata(request) })
	if err != nil {
		return nil, err
	}
	if len(response.Brokers) == 0 {
		return nil, errors.New("the server knows no server yet")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.servers)
	for _, server := range response.Brokers {
		c.servers[server.ID()] = server.Addr()
	}
	refused := map[string]sarama.KError{}
	for _, topic := range response.Topics {
		delete(c.topics, topic.Name)
		if topic.Err != sarama.ErrNoError && topic.Err != sarama.ErrLeaderNotAvailable {
			refused[topic.Name] = topic.Err
			continue
		}
		leaders := make([]int32, len(topic.Partitions))
		for i := range leaders {
			leaders[i] = -1
		}
		for _, p := range topic.Partitions {
			if int(p.ID) < len(leaders) && p.Err != sarama.ErrLeaderNotAvailable {
				leaders[p.ID] = p.Leader
			}
		}
		if len(leaders) > 0 {
			c.topics[topic.Name] = layout{leaders, time.Now()}
		}
	}
	return refused, nil
}

// links are a producer's connections, one for each server.
type links struct {
	cluster *cluster
	byAddr  map[string]*link
}

func (ls *links) to(ctx context.Context, addr string) (*link, error) {
	if l := ls.byAddr[addr]; l != nil {
		if !l.closed() {
			return l, nil
		}
		delete(ls.byAddr, addr)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerIn, fmt.Errorf("no connection to %s within %v", addr, answerIn))
	defer cancel()
	l, err := connect(ctx, ls.cluster.conf, addr)
	if err != nil {
		return nil, err
	}
	ls.byAddr[addr] = l
	return l, nil
}

// connected says that there is a connection to some server.
func (ls *links) connected() bool {
	for _, l := range ls.byAddr {
		if !l.closed() {
			return true
		}
	}
	return false
}

// idle is how long the link to addr rested; no link is the last choice.
func (ls *links) idle(addr string) time.Duration {
	if l := ls.byAddr[addr]; l != nil && !l.closed() {
		return time.Since(l.used)
	}
	return math.MaxInt64
}

// any calls fn with a link to one server after the other until it succeeds.
func (ls *links) any(ctx context.Context, fn func(context.Context, *link) error) error {
	var errs []error
	addrs := ls.cluster.addresses()
	slices.SortStableFunc(addrs, func(a, b string) int { return cmp.Compare(ls.idle(a), ls.idle(b)) })
	for _, addr := range addrs {
		l, err := ls.to(ctx, addr)
		if err == nil {
			bounded, cancel := context.WithTimeoutCause(ctx, answerIn, fmt.Errorf("no answer from %s within %v", addr, answerIn))
			err = fn(bounded, l)
			cancel()
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("kafka: no server of %s answers: %w", strings.Join(ls.cluster.seeds, ", "), errors.Join(errs...))
}

// refresh finds out about topics from any server.
func (ls *links) refresh(ctx context.Context, topics []string) (refused map[string]sarama.KError, err error) {
	err = ls.any(ctx, func(ctx context.Context, l *link) (err error) {
		refused, err = ls.cluster.ask(ctx, l, topics)
		return err
	})
	return refused, err
}

func (ls *links) close() {
	for _, l := range ls.byAddr {
		l.close()
	}
	clear(ls.byAddr)
}
