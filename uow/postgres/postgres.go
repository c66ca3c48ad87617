// Package postgres is the provider for PostgreSQL 13 and newer, on pgx.
//
// It speaks PostgreSQL's simple protocol: every statement carries its arguments
// in its text. Only the statements of a unit that is committed in one trip are
// prepared, where they allow it. Poolers in transaction mode work: one that
// doesn't know prepared statements is noticed, and nothing is prepared for a while.
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/lifeline"
	"github.com/waybill-go/waybill/uow"
)

const (
	defaultName     = "default"
	defaultMaxConns = 20
	connectTimeout  = 10 * time.Second
	closeTimeout    = 10 * time.Second
	searchPath      = "search_path"
)

// Config says which database.
type Config struct {
	// Name of the provider, shown to operators. Defaults to "default".
	Name string
	// DSN is a URL such as postgres://user@host:5432/database, or key=value
	// pairs. What it leaves out comes from the PG… environment variables;
	// connect_timeout is 10 s otherwise. Required.
	DSN string
	// Schema holds the tables: it is the search_path of every connection. Open
	// creates it if it does not exist. Defaults to the role's own search_path,
	// which is the one to set where a pooler refuses search_path at the start.
	Schema string
	// MaxConns limits the pool. Defaults to the DSN's pool_max_conns, or 20. Units of work
	// have all but an eighth of them, and all but one at least, at once: the others wait. An
	// engine has two more connections, one that listens and one that keeps leases: see Servers.
	MaxConns int
	// ListenDSN leads to the same database past a pooler, for the one connection
	// that hears of other processes' commits. Without it, behind a pooler, they are
	// found by polling. Defaults to DSN.
	ListenDSN string
	// Servers is shared by the providers of a program, so that those on one server also
	// share the connections beside their pools. Defaults to one of its own.
	Servers *Servers
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// NoCreate leaves a Schema that doesn't exist missing, for programs that only
	// look: their connections find no tables then.
	NoCreate bool
}

// FromSettings opens the provider called name from its part of a configuration
// file: the keys dsn, schema, max_conns and listen_dsn.
func FromSettings(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
	cfg, err := ConfigFrom(name, s)
	if err != nil {
		return nil, err
	}
	return Open(ctx, cfg)
}

// ConfigFrom is what FromSettings opens.
func ConfigFrom(name string, s broker.Settings) (Config, error) {
	var keys struct {
		DSN      string `yaml:"dsn"`
		Schema   string `yaml:"schema"`
		MaxConns int    `yaml:"max_conns"`
		Listen   string `yaml:"listen_dsn"`
	}
	err := s.Decode(&keys)
	return Config{Name: name, DSN: keys.DSN, Schema: keys.Schema, MaxConns: keys.MaxConns, ListenDSN: keys.Listen}, err
}

// Open connects, within ten seconds or the DSN's connect_timeout if that is longer, so
// that a wrong DSN shows at the start and not at the first unit of work. Times are read
// in UTC, and the connections' time zone is UTC unless the DSN sets another.
func Open(ctx context.Context, cfg Config) (uow.Provider, error) {
	cfg.Name = cmp.Or(cfg.Name, defaultName)
	pc, listen, err := cfg.parse()
	if err != nil {
		return nil, fmt.Errorf("postgres: provider %q: %w", cfg.Name, err)
	}
	for _, c := range []*pgx.ConnConfig{pc.ConnConfig, listen} {
		c.DialFunc = lifeline.Dial(ctx, c.DialFunc)
	}
	p := &provider{name: cfg.Name, path: pc.ConnConfig.RuntimeParams[searchPath], pause: pause{name: cfg.Name, log: cmp.Or(cfg.Logger, slog.Default())}}
	p.signals = newSignals(p)
	servers := cfg.Servers
	if servers == nil {
		servers = NewServers()
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("postgres: provider %q: %w", cfg.Name, explain(pc.ConnConfig, err))
	}
	p.units = newUnits(p.MaxConns())
	p.server, p.past = servers.join(pc.ConnConfig), servers.join(listen)
	db := sql.OpenDB(connector{stdlib.GetPoolConnector(p.pool), p})
	db.SetMaxIdleConns(0) // the pool is pgx's; whatever database/sql kept would be out of it
	p.db = bun.NewDB(db, pgdialect.New(), bun.WithDiscardUnknownColumns())
	ctx, cancel := context.WithTimeout(ctx, max(connectTimeout, pc.ConnConfig.ConnectTimeout))
	defer cancel()
	if err := p.prepare(ctx, cfg.Schema, !cfg.NoCreate); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("postgres: provider %q: %w", cfg.Name, explain(pc.ConnConfig, err))
	}
	return p, nil
}

// parse checks cfg and turns it into pgx's own configuration, of the pool and of
// the connection that listens.
func (cfg Config) parse() (*pgxpool.Config, *pgx.ConnConfig, error) {
	var errs []error
	if cfg.MaxConns < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxConns is %d: give a positive number, or 0 for %d", cfg.MaxConns, defaultMaxConns))
	}
	pc, err := cfg.dsn("Config.DSN", cfg.DSN)
	errs = append(errs, err)
	lc, err := cfg.dsn("Config.ListenDSN", cmp.Or(cfg.ListenDSN, cfg.DSN))
	if cfg.ListenDSN != "" {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	return pc, lc.ConnConfig, nil
}

// dsn parses one of the fields.
func (cfg Config) dsn(field, dsn string) (*pgxpool.Config, error) {
	if dsn == "" {
		return nil, fmt.Errorf("%s is missing: give one such as postgres://user@127.0.0.1:5432/database", field)
	}
	// pgx's own words may quote a part of the DSN, hence of its password.
	plain, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("%s can't be understood: give one such as postgres://user@127.0.0.1:5432/database, with %%-escapes for special characters in user and password", field)
	}
	pc, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("%s has a pool_ parameter that can't be understood: give counts as numbers and times like 30s", field)
	}
	if _, ok := plain.RuntimeParams["pool_max_conns"]; cfg.MaxConns > 0 || !ok {
		pc.MaxConns = int32(cmp.Or(cfg.MaxConns, defaultMaxConns))
	}
	c := pc.ConnConfig
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, connectTimeout)
	// A server whose machine is gone says nothing more: half a minute will tell.
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
	c.DialFunc = dialer.DialContext
	// bun writes each argument into the SQL, so that a prepared statement would
	// never be used twice.
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	c.RuntimeParams["client_encoding"] = "UTF8"
	c.RuntimeParams["datestyle"] = "ISO" // The only one that is read, whatever role and database have.
	if _, ok := c.RuntimeParams["timezone"]; !ok {
		c.RuntimeParams["timezone"] = "UTC"
	}
	if cfg.Schema != "" {
		c.RuntimeParams[searchPath] = pgx.Identifier{cfg.Schema}.Sanitize()
	}
	pc.AfterConnect = afterConnect
	refuseReplicas(pc)
	if manyHosts(c) {
		refuseOldPrimaries(pc)
	}
	return pc, nil
}

// errStrings is a server on which bun's quoting would not hold: a backslash in
// an argument could end the string that it stands in.
var errStrings = errors.New("standard_conforming_strings is off, and without it arguments can't be quoted safely: turn it on for this role (ALTER ROLE … SET standard_conforming_strings = on) or database")

// encodingError is a database that can't keep every text. Whatever a customer's name or a
// partner's message has beyond its letters would fail one day, when it comes.
type encodingError struct{ database, encoding string }

func (e *encodingError) Error() string {
	return fmt.Sprintf("database %q has the encoding %s, which can't keep every text that events have: make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and move what is in this one by pg_dump", e.database, e.encoding)
}

func afterConnect(_ context.Context, c *pgx.Conn) error {
	if c.PgConn().ParameterStatus("standard_conforming_strings") != "on" {
		return errStrings
	}
	// A pooler may not say it. SQL_ASCII keeps every byte as it is.
	if encoding := c.PgConn().ParameterStatus("server_encoding"); encoding != "" && encoding != "UTF8" && encoding != "SQL_ASCII" {
		return &encodingError{c.Config().Database, encoding}
	}
	c.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	c.TypeMap().RegisterType(&pgtype.Type{Name: "bytea", OID: pgtype.ByteaOID, Codec: byteaCodec{}})
	return nil
}

type provider struct {
	name string
	pool *pgxpool.Pool
	db   *bun.DB

	units *units
	// waitsForEver is that neither the server nor the role bounds how long a transaction may be idle.
	waitsForEver bool

	texts texts // of prepared statements
	pause pause // in which nothing is prepared

	path    string  // the search_path; "" is the role's
	server  *server // where the pool's connections lead
	past    *server // the same past a pooler
	leave   sync.Once
	signals *signals
}

var _ uow.Provider = (*provider)(nil)

// schemaRemedy is for poolers that keep no search_path per client.
const schemaRemedy = "leave Config.Schema out, and set the search_path of the role (ALTER ROLE … SET search_path = …)"

// prepare connects for the first time and, if it may, creates the schema.
func (p *provider) prepare(ctx context.Context, schema string, create bool) error {
	err := p.pool.QueryRow(ctx, "SELECT current_setting('idle_in_transaction_session_timeout') = '0'", pgx.QueryExecModeSimpleProtocol).Scan(&p.waitsForEver)
	if err != nil || schema == "" {
		return err
	}
	var exists, followed bool
	err = p.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1), current_setting('search_path') = $2",
		schema, pgx.Identifier{schema}.Sanitize()).Scan(&exists, &followed)
	if err == nil && !followed {
		// Tables would be made, and found, elsewhere.
		return fmt.Errorf("Config.Schema is %q, and the server or a pooler in between ignores search_path: %s", schema, schemaRemedy)
	}
	if err != nil || exists || !create {
		return err
	}
	// IF NOT EXISTS alone fails when two processes start at once.
	_, err = p.pool.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('waybill schema')); CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize())
	if err != nil {
		return fmt.Errorf("schema %q does not exist and can't be created; create it, or give the role the right to: %w", schema, err)
	}
	return nil
}

func (p *provider) Name() string         { return p.name }
func (p *provider) DB() *bun.DB          { return p.db }
func (p *provider) Reader() *bun.DB      { return p.db }
func (p *provider) Session() uow.Session { return &session{p: p} }

// MaxConns is asked for by the engine, which needs some for itself.
func (p *provider) MaxConns() int { return int(p.pool.Config().MaxConns) }

// UnitsWait is for how long units of work have waited for a connection, and none of them got one.
func (p *provider) UnitsWait() time.Duration { return p.units.still() }

// UsedUp says that all of them are in use, for who has waited in vain for one.
func (p *provider) UsedUp() bool { return p.pool.Stat().AcquiredConns() >= p.pool.Config().MaxConns }

func (p *provider) Retryable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == serializationFailure || pg.Code == deadlockDetected)
}

// Close waits for the units of work in progress, for ten seconds at most.
func (p *provider) Close() error {
	p.signals.close()
	p.leave.Do(func() {
		p.server.leave(p.signals.ctx)
		p.past.leave(p.signals.ctx)
	})
	err := p.db.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.pool.Close()
	}()
	select {
	case <-closed:
		return err
	case <-time.After(closeTimeout):
		return errors.Join(err, fmt.Errorf("postgres: provider %q: %d connections are still in use after %v: end the units of work before", p.name, p.pool.Stat().AcquiredConns(), closeTimeout))
	}
}
