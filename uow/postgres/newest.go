package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// placeOf is the key under which a connection keeps which timeline its server was on.
const placeOf = "waybill timeline"

// newest is the newest timeline of a database that connections with one DSN have been on.
type newest struct {
	mu sync.Mutex
	timeline
}

// timeline is of a cluster. Each promotion begins another, with a higher number.
type timeline struct{ system, number string }

// place is where a connection leads.
type place struct {
	timeline

	of *newest
}

// oldPrimary is a server that another one has taken the place of.
type oldPrimary struct {
	host          string
	number, newer string
}

func (e *oldPrimary) Error() string {
	return fmt.Sprintf("server %s is an old primary that came back (its timeline is %s, and this process has worked with %s): what is written there is lost. Stop it, and make it a standby of the new primary; if the database was restored there on purpose, restart this process", e.host, e.number, e.newer)
}

// SQLState is that of a server that can't be used now: the database is away, and that is no
// message's fault.
func (e *oldPrimary) SQLState() string { return "57P03" }

// refuseOldPrimaries passes over servers that were primary before the one that this process
// has worked with. After a failover one of them may come back as it was and take writes, too:
// where a DSN has several hosts some connections would lead to the one and others to the
// other, and what is claimed in one database be settled in the other. A new process knows
// only what it meets.
func refuseOldPrimaries(pc *pgxpool.Config) {
	n, before, usable := &newest{}, pc.ConnConfig.ValidateConnect, pc.PrepareConn
	pc.ConnConfig.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		return n.admit(ctx, c)
	}
	pc.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
		if isOld(c) {
			return false, nil
		}
		return usable(ctx, c)
	}
}

// manyHosts says that connections may lead to different servers.
func manyHosts(c *pgx.ConnConfig) bool {
	for _, f := range c.Fallbacks { // with and without TLS the same host is there twice
		if f.Host != c.Host || f.Port != c.Port {
			return true
		}
	}
	return false
}

// isOld says that others are on a newer timeline since c was made.
func isOld(c *pgx.Conn) bool {
	p, ok := c.PgConn().CustomData()[placeOf].(place)
	if !ok {
		return false
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.of.isNewer(p.timeline)
}

// admit refuses a server on an older timeline. One that doesn't tell, and a standby, pass.
func (n *newest) admit(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, "SELECT system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()").ReadAll()
	if _, refused := errors.AsType[*pgconn.PgError](err); refused || err == nil && (len(results) != 1 || len(results[0].Rows) != 1) {
		return nil
	}
	if err != nil {
		return err
	}
	row := results[0].Rows[0]
	t := timeline{string(row[0]), string(row[1])}
	if newer := n.note(t); newer != "" {
		return &oldPrimary{host: c.Conn().RemoteAddr().String(), number: t.number, newer: newer}
	}
	c.CustomData()[placeOf] = place{t, n}
	return nil
}

// note takes t for the newest, unless there was a newer one: then it is that one's number.
func (n *newest) note(t timeline) (newer string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isNewer(t) {
		return n.number
	}
	n.timeline = t
	return ""
}

// isNewer says that n is: eight hexadecimal digits, of one cluster.
func (n *newest) isNewer(t timeline) bool { return t.system == n.system && t.number < n.number }
