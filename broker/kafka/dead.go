package kafka

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/internal/liveness"
)

// clientID is what clients are called, unless Options say otherwise.
const clientID = "waybill"

// process is how members of this process are called, by which others on its host can tell
// whether it is alive; it has no client id where Options have one.
type process struct {
	host     liveness.Host
	clientID string
}

func processOf(client *kgo.Client) process {
	p := process{host: liveness.Here()}
	if client.OptValue(kgo.ClientID) == clientID {
		p.clientID = clientID + "-" + p.host.Name()
	}
	return p
}

func (p process) options() []kgo.Opt {
	if p.clientID == "" {
		return nil
	}
	return []kgo.Opt{kgo.ClientID(p.clientID)}
}

// dead says that a client was of a process that has ended on this host.
func (p process) dead(client string) bool {
	name, ours := strings.CutPrefix(client, clientID+"-")
	return ours && p.host.State(name) == liveness.Dead
}

// endDead takes members out of the group whose processes have ended on this host, as after
// kill -9: Kafka would keep their partitions, and whoever joins waiting, for their session
// timeout. It asks until Kafka has answered; that timeout is there for what goes wrong.
func (c *consumer) endDead(group string) {
	for c.ctx.Err() == nil && c.expel(group) != nil {
		_ = sleep(c.ctx, heartbeat)
	}
}

// expel fails where Kafka doesn't answer; what it refuses isn't asked again.
func (c *consumer) expel(name string) error {
	ctx, cancel := context.WithTimeout(c.ctx, lagIn)
	defer cancel()
	groups, err := kadm.NewClient(c.client).DescribeGroups(ctx, name)
	if err != nil {
		return err
	}
	request := kmsg.NewPtrLeaveGroupRequest()
	request.Group = name
	clients := map[string]string{} // By member.
	for _, m := range groups[name].Members {
		if c.broker.process.dead(m.ClientID) {
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID = m.MemberID
			request.Members = append(request.Members, member)
			clients[m.MemberID] = m.ClientID
		}
	}
	if len(clients) == 0 {
		return nil
	}
	answer, err := request.RequestWith(ctx, c.client)
	if err != nil {
		return err
	}
	var gone []string
	for _, m := range answer.Members {
		if m.ErrorCode == 0 {
			gone = append(gone, clients[m.MemberID])
		}
	}
	if len(gone) > 0 {
		c.logger.Info("kafka: members whose processes have ended on this host left the group at once", "members", gone)
	}
	return nil
}
