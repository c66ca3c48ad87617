// Package embedded runs a NATS server with JetStream inside the process. It is
// apart from package nats so that a client doesn't link the server.
//
// A message is acknowledged when it is on disk: neither the end of the process,
// at whatever moment, nor a loss of power takes it back. Forcing every message to
// disk is most of what publishing costs; Config.SyncInterval trades it.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/nats"
)

// Config says where the server keeps its data.
type Config struct {
	// Dir is the data directory; it is made if missing. One process has it at a
	// time. Required.
	Dir string `yaml:"embedded"`
	// Port is where the server listens, on the loopback interface only. -1: not
	// at all. Defaults to a free port.
	Port int `yaml:"port"`
	// MaxAge is for how long new streams keep messages, read or not. Defaults to
	// for ever.
	MaxAge time.Duration `yaml:"max_age"`
	// SyncInterval is how often what was acknowledged is forced to disk. The end
	// of the process loses nothing in any case; the end of the machine loses what
	// was acknowledged since. Defaults to before every acknowledgement.
	SyncInterval time.Duration `yaml:"sync_interval"`
	// Logger takes the server's warnings and errors. Defaults to slog.Default().
	Logger *slog.Logger `yaml:"-"`
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("embedded: the data directory is missing: set embedded to a path, such as ./data"))
	}
	if c.Port < -1 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("embedded: port is %d: set it to a number up to 65535, to 0 for a free one or to -1 for none", c.Port))
	}
	if c.MaxAge < 0 && c.MaxAge != -1 {
		errs = append(errs, fmt.Errorf("embedded: max_age is %v: set it to a positive duration, or leave it out to keep messages for ever", c.MaxAge))
	}
	if c.SyncInterval < 0 {
		errs = append(errs, fmt.Errorf("embedded: sync_interval is %v: set it to a positive duration, or leave it out to sync always", c.SyncInterval))
	}
	return errors.Join(errs...)
}

// maxPayload is the largest message, headers included: as much as NATS allows.
const maxPayload = 8 << 20

// Broker is a server in this process, and a connection to it.
type Broker struct {
	*nats.Broker
	server *server.Server
	lock   *lock
	url    string

	close sync.Once
	done  chan struct{} // Closed when the server has stopped.
}

var _ broker.Broker = (*Broker)(nil)

var errTaken = errors.New("another server has it: stop that process, connect to it with url, or choose another directory")

// Open starts a server that keeps its data in a directory, and connects to it.
// It fails if another process has the directory.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded: data directory: %w", err)
	}
	held, err := acquire(filepath.Join(cfg.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("embedded: data directory %s: %w", cfg.Dir, err)
	}
	b := &Broker{lock: held, done: make(chan struct{})}
	if err := b.start(ctx, cfg); err != nil {
		b.shutdown()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return b, nil
}

func (b *Broker) start(ctx context.Context, cfg Config) error {
	options := &server.Options{
		ServerName: "waybill",
		Host:       "127.0.0.1",
		Port:       cfg.Port,
		DontListen: cfg.Port == -1,
		NoSigs:     true,
		JetStream:  true,
		StoreDir:   cfg.Dir,
		// Also without it, the server writes before it acknowledges; only what the
		// operating system has can then be lost.
		SyncAlways:   cfg.SyncInterval == 0,
		SyncInterval: cfg.SyncInterval,
		MaxPayload:   maxPayload,
	}
	if cfg.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	b.server = s
	log := &logger{to: cmp.Or(cfg.Logger, slog.Default())}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if err := log.fatal(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	for !s.ReadyForConnections(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("start: %w", err)
		}
	}
	if cfg.Port != -1 {
		b.url = s.ClientURL()
	}
	b.Broker, err = nats.Open(ctx, nats.Config{
		URL: s.ClientURL(), MaxAge: cfg.MaxAge, Options: []natsgo.Option{natsgo.InProcessServer(s)},
	})
	return err
}

// URL is where other programs reach the server, such as nats://127.0.0.1:4222;
// empty if it doesn't listen.
func (b *Broker) URL() string { return b.url }

// Close closes the connection and stops the server. It returns when all is
// written, or when ctx is done; the server stops nevertheless.
func (b *Broker) Close(ctx context.Context) error {
	err := b.Broker.Close(ctx)
	go b.shutdown()
	select {
	case <-b.done:
		return err
	case <-ctx.Done():
		return errors.Join(err, fmt.Errorf("embedded: the server is still stopping: %w", ctx.Err()))
	}
}

// shutdown stops what was started.
func (b *Broker) shutdown() {
	b.close.Do(func() {
		defer close(b.done)
		if b.server != nil {
			b.server.Shutdown()
			b.server.WaitForShutdown()
		}
		b.lock.release()
	})
}

// FromSettings opens a broker of kind "nats" from a configuration file: with the
// key embedded, a server of one's own with the keys of [Config]; with url, a
// connection with those of [nats.Config].
func FromSettings(ctx context.Context, s broker.Settings) (broker.Broker, error) {
	var settings struct {
		Config      `yaml:",inline"`
		URL         string `yaml:"url"`
		Credentials string `yaml:"credentials"`
		Replicas    int    `yaml:"replicas"`
	}
	if err := s.Decode(&settings); err != nil {
		return nil, err
	}
	own := settings.Dir != ""
	switch {
	case own == (settings.URL != ""):
		return nil, errors.New("nats: set either embedded, to a directory for a server in this process, or url, to a server's address")
	case own && (settings.Credentials != "" || settings.Replicas != 0):
		return nil, errors.New("nats: credentials and replicas go with url: remove them")
	case own:
		return open(Open(ctx, settings.Config))
	case settings.Port != 0 || settings.SyncInterval != 0:
		return nil, errors.New("nats: port and sync_interval go with embedded: remove them")
	}
	return open(nats.Open(ctx, nats.Config{
		URL: settings.URL, Credentials: settings.Credentials, Replicas: settings.Replicas, MaxAge: settings.MaxAge,
	}))
}

// open keeps a nil pointer from becoming a broker.
func open[B broker.Broker](b B, err error) (broker.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

var _ broker.Opener = FromSettings
