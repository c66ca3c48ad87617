package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const defaultConfig = "waybill.yaml"

var kinds = config.Kinds{Providers: map[string]config.OpenProvider{
	"postgres": postgres.FromSettings,
	"sqlite": func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
		cfg, err := sqlite.ConfigFrom(name, s)
		if err != nil {
			return nil, err
		}
		return openSQLite(ctx, cfg)
	},
}}

// openSQLite tells nobody who may read the file: `waybill doctor` does.
func openSQLite(ctx context.Context, cfg sqlite.Config) (uow.Provider, error) {
	cfg.Logger = slog.New(slog.DiscardHandler)
	return sqlite.Open(ctx, cfg)
}

// databases are those that the command line names.
type databases struct {
	providers  []uow.Provider
	partitions int      // as configured; 0: not said
	targets    []string // brokers that the file names
	context    string   // the file's; "": none
	sends      outbox.Targets
	external   []outbox.Target // the file's
	retention  outbox.Retention
	letters    subscription.DeadLetterRetention
	server     engine.Server // the file's
	brokers    []config.Broker
	maxMessage int // bytes that a message of the file's context may have, with its headers; 0: no limit
}

// open opens them, or only one of the configuration file: others may be away. With create, a
// SQLite file that doesn't exist is made.
func (c *cli) open(ctx context.Context, only string, create bool) (*databases, error) {
	return c.openBy(ctx, onlyOne(only, kinds), func(dsn string) (uow.Provider, error) { return openDSN(ctx, dsn, create) })
}

// openThere is open for what says of each database what it came to: one that is away is
// an [unopened], and the others are there all the same.
func (c *cli) openThere(ctx context.Context, only string) (*databases, error) {
	return c.openBy(ctx, opening(onlyOne(only, kinds), func(name string, p uow.Provider, err error) (uow.Provider, error) {
		if dberr.Away(err) {
			return &unopened{name: name, err: err}, nil
		}
		return p, err
	}), func(dsn string) (uow.Provider, error) { return openDSN(ctx, dsn, false) })
}

// look opens them, or one, and makes nothing: in the place of a SQLite file that doesn't
// exist stands an empty one that goes with its provider.
func (c *cli) look(ctx context.Context, only string) (*databases, error) {
	return c.openBy(ctx, onlyOne(only, lookers(func(name, _ string) (uow.Provider, error) { return newStandIn(ctx, name) })), func(dsn string) (uow.Provider, error) {
		if noFile(dsn) && !strings.Contains(dsn, "://") && !strings.Contains(dsn, "=") {
			return newStandIn(ctx, "")
		}
		return openDSN(ctx, dsn, false)
	})
}

// unopened is a database that could not be opened, or wasn't asked for.
type unopened struct {
	uow.Provider
	name string
	err  error
}

func (u *unopened) Name() string { return u.name }
func (u *unopened) Close() error { return nil }

// away is the error of a database that could not be opened.
func away(p uow.Provider) error {
	if u, ok := p.(*unopened); ok {
		return u.err
	}
	return nil
}

// opening are kinds of which each has then the last word.
func opening(k config.Kinds, then func(name string, p uow.Provider, err error) (uow.Provider, error)) config.Kinds {
	some := config.Kinds{Providers: map[string]config.OpenProvider{}}
	for dialect, open := range k.Providers {
		some.Providers[dialect] = func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
			p, err := open(ctx, name, s)
			return then(name, p, err)
		}
	}
	return some
}

// onlyOne are kinds that open no other database than that one; "": all.
func onlyOne(only string, k config.Kinds) config.Kinds {
	some := config.Kinds{Providers: map[string]config.OpenProvider{}}
	for dialect, open := range k.Providers {
		some.Providers[dialect] = func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
			if only != "" && name != only {
				return &unopened{name: name, err: errors.New("it wasn't asked for")}, nil
			}
			return open(ctx, name, s)
		}
	}
	return some
}

// lookers open databases of a configuration file and make nothing. absent is for a
// SQLite file that doesn't exist.
func lookers(absent func(name, path string) (uow.Provider, error)) config.Kinds {
	return config.Kinds{Providers: map[string]config.OpenProvider{
		"postgres": func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
			cfg, err := postgres.ConfigFrom(name, s)
			if err != nil {
				return nil, err
			}
			cfg.NoCreate = true
			return postgres.Open(ctx, cfg)
		},
		"sqlite": func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
			cfg, err := sqlite.ConfigFrom(name, s)
			if err != nil {
				return nil, err
			}
			if noFile(cfg.Path) {
				return absent(name, cfg.Path)
			}
			return openSQLite(ctx, cfg)
		},
	}}
}

// noFile says whether there is no such file where there could be one: what else is
// wrong with a path is said when it is opened.
func noFile(path string) bool {
	_, err := os.Stat(path)
	_, dir := os.Stat(filepath.Dir(path))
	return path != "" && errors.Is(err, fs.ErrNotExist) && dir == nil
}

// standIn is an empty database.
type standIn struct {
	uow.Provider
	dir string
}

func newStandIn(ctx context.Context, name string) (uow.Provider, error) {
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		return nil, err
	}
	p, err := sqlite.Open(ctx, sqlite.Config{Name: name, Path: filepath.Join(dir, "empty.db")})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &standIn{p, dir}, nil
}

func (s *standIn) Close() error { return errors.Join(s.Provider.Close(), os.RemoveAll(s.dir)) }

// openBy opens the databases that a configuration file or --dsn names.
func (c *cli) openBy(ctx context.Context, kinds config.Kinds, openDSN func(dsn string) (uow.Provider, error)) (*databases, error) {
	switch {
	case c.Config != "" && c.DSN != "":
		return nil, &usageError{errors.New("--config and --dsn both name databases: give one of them")}
	case c.DSN != "":
		p, err := openDSN(c.DSN)
		if err != nil {
			return nil, err
		}
		return &databases{providers: []uow.Provider{p}}, nil
	case c.Config == "":
		if _, err := os.Stat(defaultConfig); err != nil {
			return nil, &usageError{errors.New("which database? Give --config waybill.yaml, or --dsn with a PostgreSQL URL or the path of a SQLite file")}
		}
		c.Config = defaultConfig
	}
	f, err := config.Parse(c.Config)
	if err != nil {
		return nil, err
	}
	providers, err := f.OpenProviders(ctx, kinds)
	if err != nil {
		return nil, err
	}
	sends := outbox.TargetsOf(f.Broker, f.External)
	return &databases{
		providers: providers, partitions: f.Partitions, targets: append([]string{f.Broker}, sends.External...),
		context: f.Domain, sends: sends, external: f.External, retention: f.Outbox.Retention, letters: f.DeadLetters, server: f.Server, brokers: f.Brokers(), maxMessage: withHeaders(f.MaxMessageBytes),
	}, nil
}

func (d *databases) close() error {
	var errs []error
	for _, p := range d.providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// eachProvider calls do for every database that is named, or for one of them.
func (c *cli) eachProvider(ctx context.Context, only string, do func(d *databases, p uow.Provider) error) (err error) {
	d, err := c.openThere(ctx, only)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var errs []error
	known := only == ""
	for _, p := range d.providers {
		if only != "" && p.Name() != only {
			continue
		}
		known = true
		err := away(p)
		if err == nil {
			err = do(d, p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
		}
	}
	if !known {
		return &usageError{fmt.Errorf("--provider: the configuration has no provider %q", only)}
	}
	return errors.Join(errs...)
}

// eachOutbox calls do for the outbox of every database that is named, or of one
// provider.
func (c *cli) eachOutbox(ctx context.Context, only string, do func(d *databases, provider string, s *outboxdb.Store) error) error {
	return c.eachProvider(ctx, only, func(d *databases, p uow.Provider) error {
		s := outboxdb.New(p.DB(), p.Reader())
		if err := s.Check(ctx); err != nil {
			return err
		}
		return do(d, p.Name(), s)
	})
}

func openDSN(ctx context.Context, dsn string, create bool) (uow.Provider, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	switch {
	case isURL && (scheme == "postgres" || scheme == "postgresql"):
		return postgres.Open(ctx, postgres.Config{DSN: dsn})
	case isURL:
		return nil, &usageError{fmt.Errorf("--dsn begins with %s://: only postgres:// and the path of a SQLite file are known", scheme)}
	}
	if _, err := os.Stat(dsn); err == nil || create && !strings.Contains(dsn, "=") {
		return openSQLite(ctx, sqlite.Config{Path: dsn})
	}
	if strings.Contains(dsn, "=") { // not quoted: it may hold a password
		return nil, &usageError{errors.New("--dsn is neither a PostgreSQL URL nor the path of a SQLite file: write key=value pairs as postgres://user@host:5432/database")}
	}
	return nil, fmt.Errorf("there is no SQLite file %s; `waybill --dsn %s migrate` makes one", dsn, dsn)
}
