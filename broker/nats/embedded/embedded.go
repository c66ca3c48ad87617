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
	"net"
	"os"
	"path/filepath"
	"strconv"
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
	// Listen is where the server listens for other programs: an address of the
	// loopback interface, such as 127.0.0.1:4222, or 127.0.0.1:0 for a free port.
	// Whoever connects has to have the key in [Broker.KeyFile]. Defaults to nowhere:
	// the server is for this process.
	Listen string `yaml:"listen"`
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
	if _, _, err := c.address(); err != nil {
		errs = append(errs, fmt.Errorf("embedded: listen is %q: %w: set it to an address of the loopback interface, such as 127.0.0.1:4222 or 127.0.0.1:0, or leave it out to listen nowhere", c.Listen, err))
	}
	if c.MaxAge < 0 && c.MaxAge != -1 {
		errs = append(errs, fmt.Errorf("embedded: max_age is %v: set it to a positive duration, or leave it out to keep messages for ever", c.MaxAge))
	}
	if c.SyncInterval < 0 {
		errs = append(errs, fmt.Errorf("embedded: sync_interval is %v: set it to a positive duration, or leave it out to sync always", c.SyncInterval))
	}
	return errors.Join(errs...)
}

// address is Listen's host and port.
func (c Config) address() (host string, port int, err error) {
	if c.Listen == "" {
		return "", 0, nil
	}
	host, number, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, err
	}
	p, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", 0, errors.New("this address can be reached from elsewhere")
	}
	if p == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(p), nil
}

// maxPayload is the largest message, headers included: as much as NATS allows.
const maxPayload = 8 << 20

// Broker is a server in this process, and a connection to it.
type Broker struct {
	*nats.Broker
	server *server.Server
	lock   *lock
	dir    directory
	client nats.Config // How other programs connect.

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
		return nil, fmt.Errorf("embedded: data directory %s can't be made; correct embedded, or Config.Dir, or give the process the right to write the directory above it: %w", cfg.Dir, err)
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
		DontListen: true,
		NoSigs:     true,
		JetStream:  true,
		StoreDir:   cfg.Dir,
		// Also without it, the server writes before it acknowledges; only what the
		// operating system has can then be lost.
		SyncAlways:   cfg.SyncInterval == 0,
		SyncInterval: cfg.SyncInterval,
		MaxPayload:   maxPayload,
	}
	if cfg.Listen != "" {
		if err := b.listen(cfg, options); err != nil {
			return err
		}
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
	if cfg.Listen != "" {
		b.client.URL = s.ClientURL()
	}
	if b.dir, err = found(cfg.Dir); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	b.Broker, err = nats.Open(ctx, nats.Config{
		URL: s.ClientURL(), NKey: b.client.NKey, MaxAge: cfg.MaxAge, Options: []natsgo.Option{natsgo.InProcessServer(s)},
	})
	return err
}

// listen lets other programs in, those that have the key.
func (b *Broker) listen(cfg Config, options *server.Options) error {
	public, file, err := key(cfg.Dir)
	if err != nil {
		return err
	}
	if options.Host, options.Port, err = cfg.address(); err != nil {
		return err
	}
	options.DontListen = false
	options.Nkeys = []*server.NkeyUser{{Nkey: public}}
	b.client.NKey = file
	return nil
}

// URL is where other programs reach the server, such as nats://127.0.0.1:4222;
// empty if it doesn't listen.
func (b *Broker) URL() string { return b.client.URL }

// KeyFile is the file with the key that other programs need to connect, an nkey's
// seed that its owner alone may read. It is made once, in the data directory, and
// again when it was removed. Empty if the server doesn't listen.
func (b *Broker) KeyFile() string { return b.client.NKey }

// Client is how another program opens this server.
func (b *Broker) Client() nats.Config { return b.client }

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
	return fromSettings(ctx, s, "")
}

// Listening is [FromSettings] for programs whose server listens, at an address as
// in Config.Listen, where the configuration file says nothing of it.
func Listening(address string) broker.Opener {
	return func(ctx context.Context, s broker.Settings) (broker.Broker, error) {
		return fromSettings(ctx, s, address)
	}
}

func fromSettings(ctx context.Context, s broker.Settings, address string) (broker.Broker, error) {
	var settings struct {
		Config      `yaml:",inline"`
		URL         string `yaml:"url"`
		Credentials string `yaml:"credentials"`
		NKey        string `yaml:"nkey"`
		Replicas    int    `yaml:"replicas"`
		ExactlyOnce bool   `yaml:"exactly_once"`
	}
	if err := s.Decode(&settings); err != nil {
		return nil, err
	}
	own := settings.Dir != ""
	switch {
	case settings.ExactlyOnce:
		return nil, nats.ErrNoTransactions
	case own == (settings.URL != ""):
		return nil, errors.New("nats: set either embedded, to a directory for a server in this process, or url, to a server's address")
	case own && (settings.Credentials != "" || settings.NKey != "" || settings.Replicas != 0):
		return nil, errors.New("nats: credentials, nkey and replicas go with url: remove them")
	case own:
		settings.Listen = cmp.Or(settings.Listen, address)
		settings.Logger = broker.LoggerOf(s)
		return open(Open(ctx, settings.Config))
	case settings.Listen != "" || settings.SyncInterval != 0:
		return nil, errors.New("nats: listen and sync_interval go with embedded: remove them")
	}
	return open(nats.Open(ctx, nats.Config{
		URL: settings.URL, Credentials: settings.Credentials, NKey: settings.NKey, Replicas: settings.Replicas, MaxAge: settings.MaxAge,
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
