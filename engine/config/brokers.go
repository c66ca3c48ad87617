package config

import (
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
