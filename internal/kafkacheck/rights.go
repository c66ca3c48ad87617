// Package kafkacheck says what contexts need of Kafka, and what is wrong with the topics
// that they have there.
package kafkacheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/kafka"
)

// Needs are what the contexts of a configuration do with one broker.
type Needs struct {
	Prefix   string   // Of all topics and groups.
	Contexts []string // Whose streams are published there.
	Topics   []string // That partners have under names of their own.
	Reads    []string // Topics that are consumed.
	Groups   []string // Of subscriptions.
	// MaxMessage is how many bytes a message may have, with its headers; 0: not known.
	MaxMessage int
	// ExactlyOnce: outboxes publish in transactions.
	ExactlyOnce bool
}

// Grant is a right that a user needs.
type Grant struct {
	Resource   string   `json:"resource"` // "topic", "group" or "transactional-id"
	Name       string   `json:"name"`
	Prefixed   bool     `json:"prefixed"` // Name is what names begin with.
	Operations []string `json:"operations"`
	For        string   `json:"for"`
}

// Grants are the rights that n needs, each once.
func (n Needs) Grants() []Grant {
	var all []Grant
	for _, c := range sorted(n.Contexts) {
		all = append(all, Grant{"topic", n.Prefix + c + ".", true, []string{"Write", "Describe", "Create", "DescribeConfigs"}, "streams of " + c})
	}
	for _, t := range sorted(n.Topics) {
		all = append(all, Grant{"topic", n.Prefix + t, false, []string{"Write", "Describe", "Create", "DescribeConfigs"}, "a partner's topic"})
	}
	for _, t := range sorted(n.Reads) {
		all = append(all, Grant{"topic", n.Prefix + t, false, []string{"Read", "Describe", "DescribeConfigs"}, "messages that are consumed"})
	}
	for _, g := range sorted(n.Groups) {
		all = append(all, Grant{"group", n.Prefix + g, false, []string{"Read", "Describe"}, "subscription " + g})
	}
	if n.ExactlyOnce {
		ids := n.Prefix + broker.TransactionalPrefix
		all = append(all,
			Grant{"transactional-id", ids, true, []string{"Write", "Describe"}, "exactly_once: the transactions"},
			Grant{"group", ids, true, []string{"Read", "Describe"}, "exactly_once: their marks"},
			Grant{"topic", n.Prefix + kafka.MarkTopic, false, []string{"Read", "Describe", "Create"}, "exactly_once: what the marks are offsets of"})
	}
	return all
}

func sorted(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// Command is g as a command of Kafka's own tool.
func (g Grant) Command(user, server string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kafka-acls --bootstrap-server %s --add --allow-principal %s", quoted(server), quoted(user))
	for _, o := range g.Operations {
		b.WriteString(" --operation " + o)
	}
	fmt.Fprintf(&b, " --%s %s", g.Resource, quoted(g.Name))
	if g.Prefixed {
		b.WriteString(" --resource-pattern-type prefixed")
	}
	return b.String()
}

// quoted is fit for a shell.
func quoted(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:,/@="
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
