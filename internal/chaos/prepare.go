package chaos

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// RefusedError says why a run didn't begin, and what helps.
type RefusedError struct{ error }

func (e *RefusedError) Unwrap() error { return e.error }

func refused(format string, args ...any) error { return &RefusedError{fmt.Errorf(format, args...)} }

// Off is a fault that isn't done, and why.
type Off struct {
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// partitions of the topic, as an engine makes it: who knows of fewer sends keys elsewhere.
const partitions = 8

// prepare looks at the servers, says which faults are on, and makes schemas and the topic.
func (r *run) prepare(ctx context.Context) ([]Off, error) {
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	off, err := r.choose(ctx)
	if err != nil {
		return nil, err
	}
	r.say("seed %d; faults on: %s", r.cfg.Seed, strings.Join(r.on, ", "))
	for _, o := range off {
		r.say("  off: %s: %s", o.Kind, o.Why)
	}
	if slices.Contains(r.on, clockFault) {
		r.say("building a program whose clock can be off; the first time that takes minutes")
		if r.shifted, err = shifted(ctx, r.cfg.Dir); err != nil {
			return nil, err
		}
	}
	return off, r.furnish(ctx)
}

// look finds out where the servers are, and refuses what isn't the run's own.
func (r *run) look(ctx context.Context) error {
	u, err := url.Parse(r.cfg.Postgres)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return refused("the address of PostgreSQL is no URL: give one such as postgres://user@127.0.0.1:5432/database")
	}
	pc, err := pgx.ParseConfig(r.cfg.Postgres)
	if err != nil {
		return refused("the address of PostgreSQL can't be understood: give one such as postgres://user@127.0.0.1:5432/database, with %%-escapes for special characters")
	}
	if !strings.HasPrefix(pc.Host, "/") && !strings.Contains(u.Host, ",") && u.Query().Get("sslmode") != "verify-full" {
		r.door = net.JoinHostPort(pc.Host, strconv.Itoa(int(pc.Port)))
	}
	q := u.Query()
	q.Set("search_path", pgx.Identifier{r.schema}.Sanitize())
	u.RawQuery = q.Encode()
	if r.db, err = sql.Open("pgx", u.String()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var now time.Time
	begin := time.Now()
	if err := r.db.QueryRowContext(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return refused("PostgreSQL doesn't answer: %w", err)
	}
	r.offset = now.Sub(begin.Add(time.Since(begin) / 2))
	for _, schema := range []string{r.schema, r.consumers} {
		var things int
		err := r.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM pg_class c WHERE c.relnamespace = n.oid) + (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = n.oid) + (SELECT count(*) FROM pg_type t WHERE t.typnamespace = n.oid)
			FROM pg_namespace n WHERE n.nspname = $1`, schema).Scan(&things)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case things > 0:
			return refused("schema %s is not empty, and nothing in it is touched: give another --schema, or drop it if it is what an earlier run has left (DROP SCHEMA %s CASCADE)", schema, quoted(schema))
		}
	}
	return r.lookAtKafka(ctx)
}

func (r *run) lookAtKafka(ctx context.Context) error {
	client, err := r.client()
	if err != nil {
		return refused("the addresses of Kafka can't be understood: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	found, err := admin.ListBrokers(ctx)
	if err != nil {
		return refused("Kafka doesn't answer: %w", err)
	}
	r.servers = slices.Clone(r.cfg.Kafka)
	for _, b := range found {
		if at := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))); !slices.Contains(r.servers, at) {
			r.servers = append(r.servers, at)
		}
	}
	topics, err := Topics(ctx, admin, r.prefix)
	if err != nil {
		return err
	}
	if len(topics) > 0 {
		return refused("Kafka has topics whose names begin with %s, and they are not touched: give another --schema, or delete %s if an earlier run has left them", r.prefix, strings.Join(topics, ", "))
	}
	return nil
}

// choose decides which faults are on.
func (r *run) choose(ctx context.Context) (off []Off, err error) {
	kinds := Kinds()
	for kind := range r.cfg.Commands {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds[len(Kinds()):])
	for _, kind := range r.cfg.Faults {
		if !slices.Contains(kinds, kind) {
			return nil, refused("there is no fault %q: take some of %s, or give its command with --disturb %s=COMMAND", kind, strings.Join(kinds, ", "), kind)
		}
	}
	var wrong []error
	for _, kind := range kinds {
		wanted := len(r.cfg.Faults) == 0 || slices.Contains(r.cfg.Faults, kind)
		why := "it was not asked for"
		if wanted {
			why = r.impossible(ctx, kind)
		}
		switch {
		case why == "":
			r.on = append(r.on, kind)
		case wanted && len(r.cfg.Faults) > 0:
			wrong = append(wrong, fmt.Errorf("%s is not possible: %s", kind, why))
		default:
			off = append(off, Off{kind, why})
		}
	}
	if len(wrong) > 0 {
		return nil, &RefusedError{errors.Join(wrong...)}
	}
	return off, nil
}

// impossible says why a fault can't be done, and what helps.
func (r *run) impossible(ctx context.Context, kind string) string {
	switch {
	case kind == stopFault && !canPause:
		return "processes can't be stopped and resumed on this system: use Linux or macOS"
	case onPostgres(kind) && r.door == "":
		return "PostgreSQL is reached through a socket file, at several hosts, or with sslmode=verify-full: give a URL with one host and another sslmode"
	case kind == clockFault:
		return canShift(ctx)
	case (kind == restartPostgresFault || kind == restartKafkaFault) && r.cfg.Commands[kind] == "":
		return "give a command that kills and starts it: --" + kind
	}
	return ""
}

// furnish makes the schemas, the accounts and the topic.
func (r *run) furnish(ctx context.Context) error {
	for _, schema := range []string{r.schema, r.consumers} {
		if err := r.migrate(ctx, schema); err != nil {
			return err
		}
	}
	_, err := r.db.ExecContext(ctx, Witness+beatsTable)
	if err != nil {
		return fmt.Errorf("the triggers that watch the outbox: %w", err)
	}
	if _, err := r.db.ExecContext(ctx, "SET search_path TO "+quoted(r.consumers)+"; "+EffectsTable+"; SET search_path TO "+quoted(r.schema)); err != nil {
		return err
	}
	client, err := r.client()
	if err != nil {
		return err
	}
	defer client.Close()
	// A crash of the database is judged by when the broker had a message, by its own clock.
	by := "LogAppendTime"
	_, err = kadm.NewClient(client).CreateTopic(ctx, partitions, -1, map[string]*string{"message.timestamp.type": &by, "retention.ms": new("-1")}, r.prefix+AccountTopic)
	return err
}

// migrate makes a schema with Waybill's tables; that of writers gets its accounts.
func (r *run) migrate(ctx context.Context, schema string) (err error) {
	p, err := postgres.Open(ctx, postgres.Config{DSN: r.cfg.Postgres, Schema: schema, MaxConns: nodeConns})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	units, err := uow.New(uow.Config{Domain: Accounts, Providers: []uow.Provider{p}})
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx, units); err != nil || schema == r.consumers {
		return err
	}
	repo := repository.New[*Account](units)
	return units.Do(ctx, func(ctx context.Context) error {
		for i := range accounts {
			a := NewAccount(AccountID(i))
			a.Move(1, "")
			if err := repo.Save(ctx, a); err != nil {
				return err
			}
		}
		return nil
	})
}

// remove takes away what the run has made, and nothing else.
func (r *run) remove(ctx context.Context) error {
	_, err := r.db.ExecContext(ctx, "DROP SCHEMA "+quoted(r.schema)+" CASCADE; DROP SCHEMA "+quoted(r.consumers)+" CASCADE")
	if err != nil {
		return err
	}
	client, err := r.client()
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := Topics(ctx, admin, r.prefix)
	if err != nil {
		return err
	}
	_, err = admin.DeleteTopics(ctx, topics...)
	deleted, failed := admin.DeleteGroups(ctx, r.prefix+effectsName)
	if gone := deleted.Error(); !errors.Is(gone, kerr.GroupIDNotFound) { // a try that was not answered
		failed = errors.Join(failed, gone)
	}
	return errors.Join(err, failed)
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// sortSeats has them stand in the order of their names, so that a plan is of the same ones.
func sortSeats(seats []*seat) {
	slices.SortFunc(seats, func(a, b *seat) int { return cmp.Compare(a.name, b.name) })
}
