package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const defaultConfig = "waybill.yaml"

var kinds = config.Kinds{Providers: map[string]config.OpenProvider{
	"postgres": postgres.FromSettings,
	"sqlite":   sqlite.FromSettings,
}}

// databases are those that the command line names.
type databases struct {
	providers  []uow.Provider
	partitions int      // as configured; 0: not said
	targets    []string // brokers that the file names
	context    string   // the file's; "": none
	sends      outbox.Targets
	external   []outbox.Target // the file's
}

// open opens them. With create, a SQLite file that doesn't exist is made.
func (c *cli) open(ctx context.Context, create bool) (*databases, error) {
	switch {
	case c.Config != "" && c.DSN != "":
		return nil, &usageError{errors.New("--config and --dsn both name databases: give one of them")}
	case c.DSN != "":
		p, err := openDSN(ctx, c.DSN, create)
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
		context: f.Domain, sends: sends, external: f.External,
	}, nil
}

func (d *databases) close() error {
	var errs []error
	for _, p := range d.providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
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
		return sqlite.Open(ctx, sqlite.Config{Path: dsn})
	}
	if strings.Contains(dsn, "=") { // not quoted: it may hold a password
		return nil, &usageError{errors.New("--dsn is neither a PostgreSQL URL nor the path of a SQLite file: write key=value pairs as postgres://user@host:5432/database")}
	}
	return nil, fmt.Errorf("there is no SQLite file %s; `waybill --dsn %s migrate` makes one", dsn, dsn)
}
