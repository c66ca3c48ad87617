package config

import (
	"cmp"
	"strings"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/secret"
)

// Broker is a broker of a file, not opened.
type Broker struct {
	Name, Kind, TopicPrefix string
	Addresses               []string // Of those kinds that have some.
	Settings                broker.Settings

	secrets map[string]string
}

// Hide is err without what the broker's settings have of secrets.
func (b Broker) Hide(err error) error { return secret.ErrorOf(err, b.secrets) }

// Brokers are those of the file, as it has them.
func (f *File) Brokers() []Broker {
	secrets := byName(f.brokers, func(b brokerEntry) (string, settings) { return b.name, b.settings })
	var all []Broker
	for _, b := range f.brokers {
		all = append(all, Broker{
			Name: b.name, Kind: b.kind, TopicPrefix: b.prefix, Settings: b.settings,
			Addresses: words(secrets[b.name]["ADDRESSES"]), secrets: secrets[b.name],
		})
	}
	return all
}

// What Kafka takes in the name of a topic, and how much of it.
const (
	kafkaLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	longestTopic = 249
)

// prefix refuses a topic_prefix that no topic of Kafka or NATS can begin with: an engine would
// name the whole topic when it starts, and not the key. What it is put before is the context's.
func (d *decoder) prefix(b brokerEntry, context string) {
	path := "brokers." + b.name + ".topic_prefix"
	mistake := func(format string, args ...any) {
		d.mistake(cmp.Or(d.where[path], d.where["brokers."+b.name]), path, format, args...)
	}
	switch b.kind {
	case "kafka":
		odd := strings.Trim(b.prefix, kafkaLetters)
		room := longestTopic - len(context+".x") // an aggregate's name has a letter at least
		switch {
		case odd != "":
			mistake("%q has %q, which Kafka takes in no topic: use a-z, A-Z, 0-9, '.', '_' and '-'", b.prefix, []rune(odd)[0])
		case len(b.prefix) > room:
			mistake("has %d characters, and a topic of Kafka may have %d with the stream's name behind it: shorten it to %d or less", len(b.prefix), longestTopic, room)
		}
	case "nats":
		if strings.ContainsAny(b.prefix, " \t\r\n*>/\\") || strings.HasPrefix(b.prefix, "$") || strings.HasPrefix(b.prefix, ".") || strings.Contains(b.prefix, "..") {
			mistake("%q can't begin a subject of NATS: use words with single dots between, without white space, slashes, * or >, and no $ in front", b.prefix)
		}
	}
}
