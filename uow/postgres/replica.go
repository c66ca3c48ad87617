package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// replicaOn is the key under which a connection keeps that its server takes no writes.
const replicaOn = "waybill replica"

// refuseReplicas closes connections whose server was found to take no writes, as it
// has become a replica: they would be idle again and again, and the next one gets them.
// A new one may lead to the new primary. The transaction ends as after any error, and
// before the connection is used again it is closed.
func refuseReplicas(pc *pgxpool.Config) {
	before := pc.ConnConfig.OnPgError
	pc.ConnConfig.OnPgError = func(c *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Code == readOnlyTransaction {
			c.CustomData()[replicaOn] = true
		}
		return before(c, err)
	}
	pc.PrepareConn = func(_ context.Context, c *pgx.Conn) (usable bool, err error) {
		return !isReplica(c), nil
	}
}

func isReplica(c *pgx.Conn) bool { return c.PgConn().CustomData()[replicaOn] != nil }
