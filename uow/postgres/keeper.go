package postgres

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/pipeline"
)

const (
	// keeperPatience is how long one waits for the keeper's connection.
	keeperPatience = time.Second
	// keeperLocks is how long it waits for a lock, in milliseconds: one in one schema must
	// not cost others their leases. The server gives up first, so that what it has given
	// up doesn't happen later.
	keeperLocks   = "2000"
	keeperTimeout = 3 * time.Second
)

// keeper is a connection beside the pools, for what must not wait until units of work
// give one back, such as renewals of leases. It is made at its first use.
type keeper struct {
	cfg  *pgx.ConnConfig
	free chan *pgx.Conn // has one element while nobody uses it, perhaps nil
}

func newKeeper(cfg *pgx.ConnConfig) keeper {
	k := keeper{cfg: cfg, free: make(chan *pgx.Conn, 1)}
	k.free <- nil
	return k
}

// run sends requests. ran is false, and nothing has happened, if it was busy or there
// is no connection.
func (k *keeper) run(ctx context.Context, requests []request) (ran bool, err error) {
	patience := time.NewTimer(keeperPatience)
	defer patience.Stop()
	var conn *pgx.Conn
	select {
	case conn = <-k.free:
	case <-patience.C:
		return false, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	defer func() { k.free <- conn }()
	ctx, cancel := context.WithTimeout(ctx, keeperTimeout)
	defer cancel()
	if conn != nil && (isOld(conn) || conn.Ping(ctx) != nil) {
		conn = hangUp(ctx, conn) // an old primary, or the server has ended it while nobody used it, as by idle_session_timeout
	}
	if conn == nil {
		if conn, err = pgx.ConnectConfig(ctx, k.cfg.Copy()); err != nil {
			conn = nil
			return false, nil
		}
	}
	if _, err = runPipeline(ctx, conn, requests); err != nil {
		// It may be in a transaction, or of no more use.
		conn = hangUp(ctx, conn)
	}
	return true, err
}

func (k *keeper) close(ctx context.Context) {
	k.free <- hangUp(ctx, <-k.free)
}

// hangUp closes conn, if there is one, and returns none. It doesn't end with ctx.
func hangUp(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	if conn != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return nil
}

// keeperDriver is how packages that have a database, and not its provider, find what
// keeps leases.
type keeperDriver struct {
	driver.Driver
	p *provider
}

var _ pipeline.Keeper = keeperDriver{}

// Driver is what sql.DB.Driver returns.
func (c connector) Driver() driver.Driver { return keeperDriver{c.Connector.Driver(), c.p} }

// Keep implements [pipeline.Keeper]. Nothing is prepared: schemas take turns on the
// connection, and each would plan anew what another has prepared.
func (d keeperDriver) Keep(ctx context.Context, statements ...pipeline.Statement) error {
	requests := []request{{query: "BEGIN ISOLATION LEVEL READ COMMITTED"}}
	// For the transaction alone: the connection is others', too.
	settings, values := "SELECT set_config('lock_timeout', $1, true)", []any{keeperLocks}
	if d.p.path != "" {
		settings, values = settings+", set_config('search_path', $2, true)", append(values, d.p.path)
	}
	r, err := request{query: settings}.with(values)
	if err != nil {
		return err
	}
	requests = append(requests, r)
	for i, s := range statements {
		r, err := request{query: s.Query, row: s.Row}.with(s.Values)
		if err != nil {
			return fmt.Errorf("postgres: statement %d: %w", i, err)
		}
		requests = append(requests, r)
	}
	requests = append(requests, request{query: "COMMIT"})
	ran, err := d.p.server.keeper.run(ctx, requests)
	if ran {
		return err
	}
	conn, err := d.p.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("postgres: no connection: %w", d.p.connecting(err))
	}
	defer conn.Release() // closes it if it is in a transaction
	_, err = runPipeline(ctx, conn.Conn(), requests)
	return err
}
