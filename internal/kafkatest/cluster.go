// Package kafkatest runs Kafka servers of a test's own: one or several, also with TLS,
// logins and rules, to be killed and started again. They end with the test, and with its
// process however that ends.
package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what servers to start.
type Config struct {
	// Brokers is how many there are. Defaults to 1.
	Brokers int
	// Apart has a controller beside them, which stays when most of them are gone. Without
	// it each is a controller, too, and most of them have to be there for any change.
	Apart bool
	// Authority signs the certificate of a listener with TLS, where users log in with
	// SCRAM-SHA-512 and may do what rules allow. Nil: there is none.
	Authority *Authority
	// Settings are lines of server.properties.
	Settings []string
}

// Cluster has an inner listener, where everybody may do everything.
type Cluster struct {
	t       testing.TB
	conf    Config
	id      string
	jars    string
	brokers []*node // Their ids are 1, 2, ….
	control []*node // The controllers.
	client  *kgo.Client
}

// patience is how long servers may take on a busy machine.
const patience = 2 * time.Minute

// Start returns when all servers answer.
func Start(t testing.TB, conf Config) *Cluster {
	t.Helper()
	conf.Brokers = max(conf.Brokers, 1)
	c := &Cluster{t: t, conf: conf, id: "WaybillsOwnClusterTest", jars: jars(t)}
	for id := 1; id <= conf.Brokers; id++ {
		c.brokers = append(c.brokers, c.node(id, true, !conf.Apart))
	}
	c.control = c.brokers
	if conf.Apart {
		c.control = []*node{c.node(100, false, true)}
		c.control[0].start(c)
	}
	var err error
	c.client, err = kgo.NewClient(kgo.SeedBrokers(c.Addresses()...), kgo.RetryTimeout(patience), kgo.MetadataMinAge(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(c.client.Close)
	c.up(c.brokers...)
	return c
}

// Addresses are those of the inner listeners.
func (c *Cluster) Addresses() (all []string) {
	for _, n := range c.brokers {
		all = append(all, local(n.inner))
	}
	return all
}

// Secured are those of the listeners with TLS and logins.
func (c *Cluster) Secured() (all []string) {
	for _, n := range c.brokers {
		all = append(all, local(n.secured))
	}
	return all
}

// Admin may do everything.
func (c *Cluster) Admin() *kadm.Client {
	admin := kadm.NewClient(c.client)
	admin.SetTimeoutMillis(int32(patience.Milliseconds()))
	return admin
}

// Kill ends a broker with kill -9.
func (c *Cluster) Kill(id int) {
	c.t.Helper()
	c.brokers[id-1].kill()
}

// Up starts brokers again that were killed, and returns when the cluster has all of its
// brokers that run and, if those are all, each replica is in sync.
func (c *Cluster) Up(ids ...int) {
	c.t.Helper()
	var down []*node
	for _, id := range ids {
		down = append(down, c.brokers[id-1])
	}
	c.up(down...)
}

func (c *Cluster) up(nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		n.start(c)
	}
	c.await("%d brokers answer", func() bool {
		for _, n := range c.brokers {
			if n.runs() && !n.listens() { // Of one that was just killed the others don't know yet.
				return false
			}
		}
		found, err := c.Admin().ListBrokers(bounded(c.t))
		return err == nil && len(found) == c.running()
	}, c.running())
	if c.running() == len(c.brokers) {
		c.await("all replicas are in sync", c.inSync)
	}
}

// inSync says that no replica is behind.
func (c *Cluster) inSync() bool {
	topics, err := c.Admin().ListTopicsWithInternal(bounded(c.t))
	if err != nil {
		return false
	}
	for _, topic := range topics {
		for _, p := range topic.Partitions {
			if len(p.ISR) < len(p.Replicas) {
				return false
			}
		}
	}
	return true
}

func (c *Cluster) running() (n int) {
	for _, b := range c.brokers {
		if b.runs() {
			n++
		}
	}
	return n
}

// await waits for a condition, as long as all servers run that were started.
func (c *Cluster) await(what string, condition func() bool, args ...any) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); <-time.After(50 * time.Millisecond) {
		for _, n := range slices.Concat(c.control, c.brokers) {
			require.False(c.t, n.died(), "Kafka's server %d ended:\n%s", n.id, n.said())
		}
		require.True(c.t, time.Now().Before(deadline), "not within %v: %s\n%s", patience, fmt.Sprintf(what, args...), c.brokers[0].said())
	}
}

// bounded ends calls of servers that hang.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// User gives a user a password, a new one if it has one, and returns when that is so
// at every broker.
func (c *Cluster) User(name, password string) {
	c.t.Helper()
	made, err := c.Admin().AlterUserSCRAMs(bounded(c.t), nil, []kadm.UpsertSCRAM{{User: name, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password}})
	require.NoError(c.t, err)
	require.NoError(c.t, made.Error())
}

// Allow gives a right, such as "--topic orders --operation Write" of Kafka's own tool.
func (c *Cluster) Allow(rule *kadm.ACLBuilder) {
	c.t.Helper()
	made, err := c.Admin().CreateACLs(bounded(c.t), rule)
	require.NoError(c.t, err)
	for _, m := range made {
		require.NoError(c.t, m.Err)
	}
}

// Forbid takes rights away.
func (c *Cluster) Forbid(rule *kadm.ACLBuilder) {
	c.t.Helper()
	gone, err := c.Admin().DeleteACLs(bounded(c.t), rule)
	require.NoError(c.t, err)
	require.NotEmpty(c.t, gone)
	for _, g := range gone {
		require.NoError(c.t, g.Err)
		require.NotEmpty(c.t, g.Deleted)
	}
}

// Lead moves the leadership of all partitions of a topic to a broker that has a replica
// in sync, by making it the preferred one.
func (c *Cluster) Lead(topic string, id int) {
	c.t.Helper()
	topics, err := c.Admin().ListTopics(bounded(c.t), topic)
	require.NoError(c.t, err)
	var want kadm.AlterPartitionAssignmentsReq
	var all kadm.TopicsSet
	for _, p := range topics[topic].Partitions {
		order := []int32{int32(id)}
		for _, r := range p.Replicas {
			if r != int32(id) {
				order = append(order, r)
			}
		}
		want.Assign(topic, p.Partition, order)
		all.Add(topic, p.Partition)
	}
	altered, err := c.Admin().AlterPartitionAssignments(bounded(c.t), want)
	require.NoError(c.t, err)
	require.NoError(c.t, altered.Error())
	c.await("broker %d leads %s", func() bool {
		elected, err := c.Admin().ElectLeaders(bounded(c.t), kadm.ElectPreferredReplica, all)
		if err != nil {
			return false
		}
		for _, partitions := range elected {
			for _, p := range partitions {
				if p.Err != nil && !errors.Is(p.Err, kerr.ElectionNotNeeded) {
					return false
				}
			}
		}
		return true
	}, id, topic)
}

// local is a port's address.
func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// jars is the directory of what scripts/services has fetched, which it does here if nobody
// did.
var jars = func() func(testing.TB) string {
	var once sync.Once
	var dir string
	var err error
	return func(t testing.TB) string {
		t.Helper()
		once.Do(func() { dir, err = fetch() })
		require.NoError(t, err)
		return dir
	}
}()

func fetch() (string, error) {
	ctx := context.Background()
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/waybill-go/waybill").Output()
	if err != nil {
		return "", fmt.Errorf("kafkatest: go list -m: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	if out, err := exec.CommandContext(ctx, filepath.Join(dir, "scripts", "services"), "install", "kafka").CombinedOutput(); err != nil {
		return "", fmt.Errorf("kafkatest: scripts/services install kafka: %w\n%s", err, out)
	}
	libs := filepath.Join(dir, ".services", "kafka", os.Getenv("WAYBILL_KAFKA_VERSION"), "libs")
	if _, err := os.Stat(libs); err != nil {
		return "", fmt.Errorf("kafkatest: %w", err)
	}
	return libs, nil
}
