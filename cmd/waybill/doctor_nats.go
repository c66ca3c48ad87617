package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/internal/natscheck"
	"github.com/waybill-go/waybill/outbox"
)

// natsReport is the answer of doctor --nats about one broker.
type natsReport struct {
	Findings []doctor.Finding `json:"findings"`
}

func (r natsReport) findings() []doctor.Finding { return r.Findings }
func (natsReport) tell(string, out)             {}

// nats looks at the brokers of the file that are NATS.
func (d doctorCmd) nats(ctx context.Context, c *cli, stdout out) (err error) {
	all, err := c.openForDoctor(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	hint := ""
	if len(d.Reads) == 0 {
		hint = "What is consumed is not in the file: name categories with --reads."
	}
	look := func(b config.Broker, n kafkacheck.Needs) brokerReport {
		return natsReport{lookAtNATS(ctx, b, natscheck.Needs{Prefix: n.Prefix, Contexts: n.Contexts, Topics: append(n.Topics, n.Reads...), MaxMessage: n.MaxMessage})}
	}
	return d.brokers(c, stdout, all, nil, hint, look, "nats")
}

func lookAtNATS(ctx context.Context, b config.Broker, n natscheck.Needs) []doctor.Finding {
	conf, err := nats.ConfigFrom(b.Settings)
	if errors.Is(err, nats.ErrEmbedded) {
		return []doctor.Finding{{
			Check: "connection", Severity: doctor.Warning, What: "the server runs inside the service (embedded), so it isn't looked at",
			Remedy: "if its settings have listen, give --config a copy of the file that has, in place of embedded, that address as url, and as nkey the file client.nk of its directory",
		}}
	}
	if err != nil {
		return []doctor.Finding{unusable(b.Hide(err))}
	}
	nc, err := conf.Connect(ctx)
	if err != nil {
		return []doctor.Finding{natscheck.Unreached(b.Hide(err))}
	}
	defer nc.Close()
	return natscheck.Look(ctx, nc, n)
}

// withHeaders is how large a message may be whose body outbox.max_message_bytes bounds.
func withHeaders(body int) int {
	if body < 0 {
		return 0
	}
	return cmp.Or(body, outbox.DefaultMaxMessageBytes) + outbox.BesideBody
}
