package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/subscription"
)

// kafkaReport is the answer of doctor --kafka about one broker.
type kafkaReport struct {
	Grants   []kafkacheck.Grant `json:"grants"`
	Commands []string           `json:"commands"`
	Findings []doctor.Finding   `json:"findings"`
}

func (r kafkaReport) findings() []doctor.Finding { return r.Findings }

func (r kafkaReport) tell(broker string, stdout out) {
	fmt.Fprintf(stdout, "Broker %s needs these rights:\n", broker)
	for i, g := range r.Grants {
		fmt.Fprintf(stdout, "  # %s\n  %s\n", printable(g.For), printable(r.Commands[i]))
	}
}

// kafka looks at the brokers of the file that are Kafka's.
func (d doctorCmd) kafka(ctx context.Context, c *cli, stdout out) (err error) {
	all, err := c.openForDoctor(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	groups := all.groups(ctx)
	hint := ""
	if len(groups) == 0 || len(d.Reads) == 0 {
		hint = "What is consumed is not in the file: name categories with --reads; subscriptions are known to the database once they have run."
	}
	look := func(b config.Broker, n kafkacheck.Needs) brokerReport { return d.look(ctx, b, n) }
	return d.brokers(c, stdout, all, groups, hint, look, "kafka", "watermill-kafka")
}

// look asks Kafka for its topics. One over Watermill has another client, and settings of
// its own.
func (d doctorCmd) look(ctx context.Context, b config.Broker, n kafkacheck.Needs) kafkaReport {
	conf, wrong := kafka.Config{Addresses: b.Addresses}, error(nil)
	if b.Kind == "kafka" {
		conf, wrong = kafka.ConfigFrom(b.Settings)
	}
	user := "User:" + cmp.Or(conf.SASL.User, "waybill")
	r := kafkaReport{Grants: n.Grants()}
	for _, g := range r.Grants {
		r.Commands = append(r.Commands, g.Command(cmp.Or(d.User, user), serverOf(b)))
	}
	conf.Logger = slog.New(slog.DiscardHandler)
	var client *kgo.Client
	if wrong == nil {
		client, wrong = conf.Client()
	}
	if wrong != nil {
		r.Findings = []doctor.Finding{unusable(b.Hide(wrong))}
		return r
	}
	defer client.Close()
	r.Findings = kafkacheck.Look(ctx, client, n)
	return r
}

// groups are the subscriptions that the databases know of, as far as they answer.
func (d *databases) groups(ctx context.Context) (names []string) {
	for _, p := range d.providers {
		if away(p) != nil {
			continue
		}
		known, err := subscription.List(ctx, p.Reader())
		if err != nil {
			continue // its tables are missing: doctor without --kafka says so
		}
		for _, s := range known {
			names = append(names, s.Name)
		}
	}
	return names
}

func serverOf(b config.Broker) string {
	if len(b.Addresses) == 0 {
		return "localhost:9092"
	}
	return b.Addresses[0]
}
