package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// kafkaReport is the answer of doctor --kafka about one broker.
type kafkaReport struct {
	Grants   []kafkacheck.Grant `json:"grants"`
	Commands []string           `json:"commands"`
	Findings []doctor.Finding   `json:"findings"`
}

// kafka looks at the brokers of the file that are Kafka's.
func (d doctorCmd) kafka(ctx context.Context, c *cli, stdout out) (err error) {
	all, err := c.openForDoctor(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	groups := all.groups(ctx)
	report := map[string]kafkaReport{}
	var worst []doctor.Finding
	for _, b := range all.brokers {
		if b.Kind != "kafka" && b.Kind != "watermill-kafka" {
			continue
		}
		needs, used := d.needs(all, b, groups)
		if !used {
			continue
		}
		r := d.look(ctx, b, needs)
		report[b.Name] = r
		worst = append(worst, r.Findings...)
		if !c.JSON {
			tellRights(b.Name, r, stdout)
			tellFindings("Broker "+b.Name, r.Findings, stdout)
		}
	}
	if len(report) == 0 {
		return &usageError{errors.New("no broker of the configuration file is of kind kafka, or none is used: give --config with one that has")}
	}
	if doctor.Worst(worst) == doctor.Critical {
		err = errors.New("something is critical")
	}
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"severity": doctor.Worst(worst), "brokers": report}))
	}
	if len(groups) == 0 || len(d.Reads) == 0 {
		fmt.Fprintln(stdout, "\nWhat is consumed is not in the file: name categories with --reads; subscriptions are known to the database once they have run.")
	}
	return err
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

func unusable(err error) doctor.Finding {
	return doctor.Finding{Check: "settings", Severity: doctor.Critical, What: err.Error(), Remedy: "correct them in the configuration"}
}

// needs are those of the contexts of a file at one of its brokers; used is whether
// they have any.
func (d doctorCmd) needs(all *databases, b config.Broker, groups []string) (n kafkacheck.Needs, used bool) {
	n = kafkacheck.Needs{Prefix: b.TopicPrefix}
	if all.targets[0] == b.Name {
		used = true
		n.Contexts, n.Groups = append(n.Contexts, d.Publishes...), groups
		for _, category := range d.Reads {
			n.Reads = append(n.Reads, outbox.DefaultTopic(category))
		}
	}
	for _, t := range all.external {
		if t.Broker == b.Name {
			used = true
			n.Topics = append(n.Topics, slices.Collect(maps.Values(t.Topics))...)
		}
	}
	if conf, err := kafka.ConfigFrom(b.Settings); err == nil && b.Kind == "kafka" {
		n.ExactlyOnce = conf.ExactlyOnce
	}
	if used && all.context != "" {
		n.Contexts = append(n.Contexts, all.context)
	}
	return n, used
}

// groups are the subscriptions that the databases know of, as far as they answer.
func (d *databases) groups(ctx context.Context) (names []string) {
	for _, p := range d.providers {
		if _, away := p.(*unopened); away {
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

func tellRights(broker string, r kafkaReport, stdout out) {
	fmt.Fprintf(stdout, "Broker %s needs these rights:\n", broker)
	for i, g := range r.Grants {
		fmt.Fprintf(stdout, "  # %s\n  %s\n", printable(g.For), printable(r.Commands[i]))
	}
}
