package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/broker/kafka"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/kafkacheck"
	"github.com/waybill-go/waybill/outbox"
)

// brokerReport is the answer of doctor about one broker.
type brokerReport interface {
	findings() []doctor.Finding
	// tell says what it has beside its findings.
	tell(broker string, stdout out)
}

// brokers looks at those of a file that are of some kinds and that its contexts use. hint is
// for people, behind all reports; "": none.
func (d doctorCmd) brokers(c *cli, stdout out, all *databases, groups []string, hint string, look func(config.Broker, kafkacheck.Needs) brokerReport, kinds ...string) (err error) {
	report := map[string]brokerReport{}
	var found []doctor.Finding
	for _, b := range all.brokers {
		needs, used := d.needs(all, b, groups)
		if !used || !slices.Contains(kinds, b.Kind) {
			continue
		}
		r := look(b, needs)
		report[b.Name] = r
		found = append(found, r.findings()...)
		if !c.JSON {
			r.tell(b.Name, stdout)
			tellFindings("Broker "+b.Name, r.findings(), stdout)
		}
	}
	if len(report) == 0 {
		return &usageError{fmt.Errorf("no broker of the configuration file is of kind %s, or none is used: give --config with one that has", kinds[0])}
	}
	if doctor.Worst(found) == doctor.Critical {
		err = errors.New("something is critical")
	}
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"severity": doctor.Worst(found), "brokers": report}))
	}
	if hint != "" {
		fmt.Fprintln(stdout, "\n"+hint)
	}
	return err
}

// needs are those of the contexts of a file at one of its brokers; used is whether
// they have any.
func (d doctorCmd) needs(all *databases, b config.Broker, groups []string) (n kafkacheck.Needs, used bool) {
	n = kafkacheck.Needs{Prefix: b.TopicPrefix, MaxMessage: all.maxMessage}
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
	if b.Kind == "kafka" {
		if conf, err := kafka.ConfigFrom(b.Settings); err == nil {
			n.ExactlyOnce = conf.ExactlyOnce
		}
	}
	if used && all.context != "" {
		n.Contexts = append(n.Contexts, all.context)
	}
	return n, used
}

func unusable(err error) doctor.Finding {
	return doctor.Finding{Check: "settings", Severity: doctor.Critical, What: err.Error(), Remedy: "correct them in the configuration"}
}
