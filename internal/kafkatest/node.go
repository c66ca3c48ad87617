package kafkatest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/porttest"
)

// node is a server, which is a process while it runs.
type node struct {
	id              int
	dir             string
	inner, secured  int // Ports.
	controller      int
	broker, control bool // Its roles.

	cmd    *exec.Cmd
	ended  chan struct{}
	reaper *exec.Cmd
	hold   io.WriteCloser
}

// node is a server that has never run.
func (c *Cluster) node(id int, broker, control bool) *node {
	n := &node{id: id, dir: c.t.TempDir(), broker: broker, control: control}
	n.inner, n.secured, n.controller = porttest.Free(), porttest.Free(), porttest.Free()
	c.t.Cleanup(n.kill)
	return n
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// start starts the server. It ends when this process does, whatever the reason.
func (n *node) start(c *Cluster) {
	c.t.Helper()
	n.write(c)
	log, err := os.OpenFile(n.file("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(c.t, err)
	defer log.Close()
	n.cmd = exec.CommandContext(context.Background(), "java", "-Xms96m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true",
		"-Dlog4j.configuration=file:"+n.file("log4j.properties"), "-cp", c.jars+"/*", "kafka.Kafka", n.file("server.properties"))
	n.cmd.Stdout, n.cmd.Stderr = log, log
	require.NoError(c.t, n.cmd.Start())
	n.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait() // How it ended is in its log.
	}(n.cmd, n.ended)
	n.reaper = exec.CommandContext(context.Background(), "sh", "-c", `read -r line || kill -9 "$0"`, fmt.Sprint(n.cmd.Process.Pid))
	n.hold, err = n.reaper.StdinPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, n.reaper.Start())
}

// kill is kill -9, of one that runs.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_, _ = io.WriteString(n.hold, "\n") // It has nothing to do any more.
	_ = n.reaper.Wait()
	_ = n.cmd.Process.Kill() // It may have ended.
	<-n.ended
	n.cmd = nil
}

func (n *node) runs() bool { return n.cmd != nil }

// listens says that clients get in, which is so when it has joined the cluster.
func (n *node) listens() bool {
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", local(n.inner))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// died says that it ended by itself.
func (n *node) died() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.ended:
		return true
	default:
		return false
	}
}

// said is the end of what its log has beside news.
func (n *node) said() string {
	text, err := os.ReadFile(n.file("log"))
	if err != nil {
		return err.Error()
	}
	lines := slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.Contains(line, " INFO ") })
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// write writes what the server reads, the first time also what marks its storage as the
// cluster's.
func (n *node) write(c *Cluster) {
	c.t.Helper()
	require.NoError(c.t, os.MkdirAll(n.file("data"), 0o700))
	files := map[string]string{"server.properties": strings.Join(n.settings(c), "\n"), "log4j.properties": log4j}
	if _, err := os.Stat(n.file("data/meta.properties")); err != nil {
		files["data/meta.properties"] = fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\n", c.id, n.id)
	}
	if c.conf.Authority != nil && n.broker {
		files["server.pem"] = c.conf.Authority.pem(c.t)
	}
	for name, text := range files {
		require.NoError(c.t, os.WriteFile(n.file(name), []byte(text), 0o600))
	}
}

const log4j = `log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.org.apache.kafka.clients=WARN
log4j.logger.kafka.server.KafkaConfig=WARN
`

func (n *node) settings(c *Cluster) []string {
	var roles, listeners []string
	if n.broker {
		roles, listeners = append(roles, "broker"), append(listeners, "INNER://"+local(n.inner))
		if c.conf.Authority != nil {
			listeners = append(listeners, "SECURED://"+local(n.secured))
		}
	}
	advertised := listeners
	if n.control {
		roles, listeners = append(roles, "controller"), append(listeners, "CONTROLLER://"+local(n.controller))
	}
	var voters []string
	for _, v := range c.control {
		voters = append(voters, fmt.Sprintf("%d@%s", v.id, local(v.controller)))
	}
	replicas := min(c.conf.Brokers, 3)
	inSync := max(replicas-1, 1)
	all := []string{
		"process.roles=" + strings.Join(roles, ","),
		fmt.Sprint("node.id=", n.id),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		"controller.listener.names=CONTROLLER",
		"listeners=" + strings.Join(listeners, ","),
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,INNER:PLAINTEXT,SECURED:SASL_SSL",
		"log.dirs=" + n.file("data"),
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:ANONYMOUS",
		"auto.create.topics.enable=false",
		"auto.leader.rebalance.enable=false",
		fmt.Sprint("default.replication.factor=", replicas),
		fmt.Sprint("min.insync.replicas=", inSync),
		fmt.Sprint("offsets.topic.replication.factor=", replicas),
		"offsets.topic.num.partitions=4",
		fmt.Sprint("transaction.state.log.replication.factor=", replicas),
		fmt.Sprint("transaction.state.log.min.isr=", inSync),
		"transaction.state.log.num.partitions=4",
		"group.initial.rebalance.delay.ms=0",
		// After a kill the old one's session must end first.
		"broker.session.timeout.ms=6000",
		"broker.heartbeat.interval.ms=1000",
	}
	if n.broker {
		all = append(all, "inter.broker.listener.name=INNER", "advertised.listeners="+strings.Join(advertised, ","))
	}
	if n.broker && c.conf.Authority != nil {
		all = append(all,
			"sasl.enabled.mechanisms=SCRAM-SHA-512",
			"listener.name.secured.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
			"listener.name.secured.ssl.keystore.type=PEM",
			"listener.name.secured.ssl.keystore.location="+n.file("server.pem"),
		)
	}
	return append(all, c.conf.Settings...)
}
