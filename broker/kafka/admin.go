package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/broker"
)

// ConfigFrom reads what [FromSettings] reads, and opens nothing.
func ConfigFrom(s broker.Settings) (Config, error) {
	var settings struct {
		Config `yaml:",inline"`
		Acks   string `yaml:"acks"`
	}
	if err := s.Decode(&settings); err != nil {
		return Config{}, err
	}
	if settings.Acks != "" && settings.Acks != "all" {
		return Config{}, fmt.Errorf("kafka: acks is %q: with less than all, an acknowledged message is lost when its leader fails; write acks: all, or leave it out", settings.Acks)
	}
	settings.Logger = broker.LoggerOf(s)
	return settings.Config, nil
}

// Client is one of franz-go's with the addresses, the encryption and the login of c,
// for tools that look at a cluster. Whoever asks for it closes it.
func (c Config) Client() (*kgo.Client, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(c.options(c.wire())...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return client, nil
}
