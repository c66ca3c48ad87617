package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/broker/nats"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/natscheck"
)

// natsReport is the answer of doctor --nats about one broker.
type natsReport struct {
	Findings []doctor.Finding `json:"findings"`
}

// nats looks at the brokers of the file that are NATS.
func (d doctorCmd) nats(ctx context.Context, c *cli, stdout out) (err error) {
	all, err := c.openForDoctor(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	report := map[string]natsReport{}
	var worst []doctor.Finding
	for _, b := range all.brokers {
		if b.Kind != "nats" {
			continue
		}
		needs, used := d.needs(all, b, nil)
		if !used {
			continue
		}
		found := lookAtNATS(ctx, b, natscheck.Needs{
			Prefix: needs.Prefix, Contexts: needs.Contexts, Topics: append(needs.Topics, needs.Reads...), MaxMessage: all.maxMessage,
		})
		report[b.Name] = natsReport{found}
		worst = append(worst, found...)
		if !c.JSON {
			tellFindings("Broker "+b.Name, found, stdout)
		}
	}
	if len(report) == 0 {
		return &usageError{errors.New("no broker of the configuration file is of kind nats, or none is used: give --config with one that has")}
	}
	if doctor.Worst(worst) == doctor.Critical {
		err = errors.New("something is critical")
	}
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"severity": doctor.Worst(worst), "brokers": report}))
	}
	if len(d.Reads) == 0 {
		fmt.Fprintln(stdout, "\nWhat is consumed is not in the file: name categories with --reads.")
	}
	return err
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
	const usual, beside = 1 << 20, 4 << 10
	if body < 0 {
		return 0
	}
	return cmp.Or(body, usual) + beside
}
