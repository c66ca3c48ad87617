package nats

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill/broker"
)

// ErrEmbedded is why a server that a program runs itself can't be opened by this package.
var ErrEmbedded = errors.New("nats: this program can't run the server itself: register embedded.FromSettings of broker/nats/embedded for kind nats, or replace embedded by url")

// ConfigFrom reads what [FromSettings] reads, and opens nothing. The error is
// [ErrEmbedded] where the settings name no server but one of the program's own.
func ConfigFrom(s broker.Settings) (Config, error) {
	var settings struct {
		Config      `yaml:",inline"`
		Embedded    string `yaml:"embedded"`
		ExactlyOnce bool   `yaml:"exactly_once"`
	}
	if err := s.Decode(&settings); err != nil {
		return Config{}, err
	}
	if settings.ExactlyOnce {
		return Config{}, ErrNoTransactions
	}
	if settings.Embedded != "" {
		return Config{}, ErrEmbedded
	}
	return settings.Config, nil
}

// Connect makes a connection with the address, the encryption and the login of c, for tools
// that look at a server. It fails where the server doesn't answer. Whoever asks for it
// closes it.
func (c Config) Connect(ctx context.Context) (*nats.Conn, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	nc, err := connect(ctx, c.URL, options)
	if err != nil {
		return nil, noConnection(err, c)
	}
	return nc, nil
}

// options are those of c alone.
func (c Config) options() ([]nats.Option, error) {
	options := append([]nats.Option{nats.Name("waybill"), nats.Timeout(connectIn)}, c.Options...)
	if c.Credentials != "" {
		options = append(options, nats.UserCredentials(c.Credentials))
	}
	if c.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, fmt.Errorf("nats: nkey: %w", err)
		}
		options = append(options, key)
	}
	return options, nil
}
