package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
)

// O17: a connection whose server takes no writes, as it has become a replica, is used
// by nobody again, whoever met it: the next one is new, and may lead to the new primary.
// Conformance: F-63.
func TestReplica_O17_ConnectionsAreClosed(t *testing.T) {
	for name, write := range map[string]func(context.Context, uow.Provider) error{
		"a unit in one trip, prepared": func(ctx context.Context, p uow.Provider) error {
			return p.Session().Commit(ctx, []uow.Statement{insertPrepared("a")})
		},
		"a unit in one trip, plain": func(ctx context.Context, p uow.Provider) error {
			return p.Session().Commit(ctx, []uow.Statement{insert("a")})
		},
		"a unit that has begun": func(ctx context.Context, p uow.Provider) error {
			s := p.Session()
			if _, err := s.DB(ctx); err != nil {
				return err
			}
			return errors.Join(s.Commit(ctx, []uow.Statement{insert("a")}), s.Rollback(ctx))
		},
		"a statement": func(ctx context.Context, p uow.Provider) error {
			_, err := p.DB().ExecContext(ctx, "INSERT INTO things (id, n) VALUES ('a', 0)")
			return err
		},
		"a query": func(ctx context.Context, p uow.Provider) error {
			var id string
			return p.DB().NewRaw("INSERT INTO things (id, n) VALUES ('a', 0) RETURNING id").Scan(ctx, &id)
		},
		"a transaction": func(ctx context.Context, p uow.Provider) error {
			tx, err := p.DB().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "SELECT id FROM things FOR UPDATE")
			return errors.Join(err, tx.Rollback())
		},
		"a pipeline": func(ctx context.Context, p uow.Provider) error {
			return pipelined(ctx, p, nil, pipeline.Statement{Query: "INSERT INTO things (id, n) VALUES ('a', 0)"})
		},
		"a pipeline of two trips": func(ctx context.Context, p uow.Provider) error {
			return pipelined(ctx, p, func() []pipeline.Statement {
				return []pipeline.Statement{{Query: "INSERT INTO things (id, n) VALUES ('a', 0)"}}
			}, pipeline.Statement{Query: "SELECT 1"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, onOne)
			things(t, p)
			exec(t, p, "SET default_transaction_read_only = on")
			require.ErrorContains(t, write(t.Context(), p), "25006")
			require.NoError(t, write(t.Context(), p))
			noneInUse(t, p)
		})
	}
}

// A server that answers and may not be written to isn't one that is away, whatever other hosts
// of the DSN are.
func TestOpen_NoServerIsWhatTheDSNAsksFor(t *testing.T) {
	u, err := url.Parse(dsn(t))
	require.NoError(t, err)
	u.Host = "127.0.0.1:1," + u.Host
	u.RawQuery = "target_session_attrs=read-write&default_transaction_read_only=on"
	_, err = postgres.Open(t.Context(), postgres.Config{DSN: u.String()})
	require.ErrorContains(t, err, "no server of the DSN is what its target_session_attrs asks for, though one answers: promote a standby")
	require.ErrorContains(t, err, "read only connection")
	require.NotContains(t, err.Error(), "no PostgreSQL answers")
}
