package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	invalidText          = "22P02"
	undefinedTable       = "42P01"
	invalidPassword      = "28P01"
	invalidAuthorization = "28000"
	undefinedDatabase    = "3D000"
	undefinedParameter   = "42704"
	tooManyConnections   = "53300"
	unknownStatement     = "26000"
	duplicateStatement   = "42P05"
	readOnlyTransaction  = "25006"
)

// explain says what is wrong with a server, user or database, and what helps.
// It never names the password.
func explain(c *pgx.ConnConfig, err error) error {
	if explained, ok := errors.AsType[*noConnection](err); ok {
		return explained.error
	}
	server := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if failed, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = attempts{failed.Unwrap()} // the ConnectError itself holds the configuration
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	unfit, isUnfit := errors.AsType[*encodingError](err)
	_, isOldPrimary := errors.AsType[*oldPrimary](err)
	switch {
	case isOldPrimary:
		return fmt.Errorf("no server of the DSN is the primary of now: %w", err)
	case isUnfit:
		return fmt.Errorf("server %s: %w", server, unfit)
	case errors.Is(err, errStrings):
		return fmt.Errorf("server %s: %w", server, errStrings)
	case !ok && errors.Is(err, context.Canceled):
		return fmt.Errorf("server %s: gave up connecting: %w", server, err)
	case !ok && strings.HasSuffix(err.Error(), refusedTLS):
		return fmt.Errorf("server %s has no TLS, which the DSN asks for: set it up there, or choose another sslmode: %w", server, err)
	case !ok && untrusted(err):
		return fmt.Errorf("server %s shows a certificate that the DSN doesn't trust: correct its sslrootcert or host, or the certificate: %w", server, err)
	case !ok && strings.Contains(err.Error(), otherAttributes):
		return fmt.Errorf("no server of the DSN is what its target_session_attrs asks for, though one answers: promote a standby, end what makes the primary read-only (default_transaction_read_only), or correct the hosts in the DSN: %w", err)
	case !ok:
		return fmt.Errorf("no PostgreSQL answers at %s: start it, or correct the address in the DSN: %w", server, err)
	case pg.Code == invalidPassword || pg.Code == invalidAuthorization:
		return fmt.Errorf("server %s refuses user %q on database %q: correct user or password in the DSN, or pg_hba.conf: %w", server, c.User, c.Database, err)
	case pg.Code == undefinedDatabase:
		return fmt.Errorf("server %s has no database %q: create it (CREATE DATABASE), or correct the name in the DSN: %w", server, c.Database, err)
	case pg.Code == undefinedParameter:
		return fmt.Errorf("server %s is given a parameter that it doesn't know, as it gets each one of the DSN that isn't about the connection: correct its name, as in sslmode, or take it out: %w", server, err)
	case strings.HasPrefix(pg.Message, "unsupported startup parameter"): // PgBouncer's words
		return fmt.Errorf("server %s is a pooler that refuses a start-up parameter; for search_path %s, others leave out of Config.DSN: %w", server, schemaRemedy, err)
	case pg.Code == tooManyConnections && strings.Contains(pg.Message, " for role "):
		return fmt.Errorf("server %s has no connection left for user %q: raise the role's limit (ALTER ROLE … CONNECTION LIMIT) or lower Config.MaxConns: %w", server, c.User, err)
	case pg.Code == tooManyConnections && strings.Contains(pg.Message, " for database "):
		return fmt.Errorf("server %s has no connection left for database %q: raise its limit (ALTER DATABASE … CONNECTION LIMIT) or lower Config.MaxConns: %w", server, c.Database, err)
	case pg.Code == tooManyConnections:
		return fmt.Errorf("server %s has no connection left: raise its max_connections or lower Config.MaxConns: %w", server, err)
	}
	return fmt.Errorf("server %s: %w", server, err)
}

// refusedTLS is what pgx says at the end of an attempt.
const refusedTLS = "server refused TLS connection"

// otherAttributes is what pgx says of a server that answers, and isn't what target_session_attrs asks for.
const otherAttributes = "ValidateConnect failed: "

func untrusted(err error) bool {
	_, ok := errors.AsType[*tls.CertificateVerificationError](err)
	return ok
}

// noConnection is an error that has been explained.
type noConnection struct{ error }

func (e *noConnection) Unwrap() error { return e.error }

// connecting explains why there is no connection, in one line, and leaves other errors as
// they are.
func (p *provider) connecting(err error) error {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &noConnection{explain(p.pool.Config().ConnConfig, err)}
	}
	if errors.Is(err, context.DeadlineExceeded) && p.UsedUp() {
		// The database may be well, and this process's handlers wait for something else.
		return &noConnection{fmt.Errorf("all %d connections of the pool were in use for as long as one was waited for: raise max_conns, or end transactions before what takes long: %w", p.MaxConns(), err)}
	}
	return err
}

// attempts is the error of connecting. pgx tries each address with TLS and, unless the
// DSN forbids it, without: a server that has no TLS is not what is wrong if the second
// one fails, and what fails alike is said once.
type attempts struct{ error }

func (a attempts) Error() string {
	var said []string
	for line := range strings.Lines(a.error.Error()) {
		line = strings.TrimSpace(line)
		if !slices.Contains(said, line) {
			said = append(said, line)
		}
	}
	wrong := slices.DeleteFunc(slices.Clone(said), func(line string) bool { return strings.HasSuffix(line, refusedTLS) })
	if len(wrong) == 0 {
		wrong = said // TLS is asked for, and there is none
	}
	return strings.Join(wrong, "; ")
}

func (a attempts) Unwrap() error { return a.error }
