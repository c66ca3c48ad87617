package doctor

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// identity tells of a database that isn't the one that its outbox was written in: engines
// publish nothing from it.
func (e *exam) identity(ctx context.Context, _ bun.IDB) (string, error) {
	recorded, present, err := outboxdb.New(e.provider.DB(), e.provider.Reader()).Identity(ctx)
	if err != nil {
		return "", err
	}
	if moved := present.Moved(recorded); moved != "" {
		e.moved = true
		e.add(Critical, "", "engines publish nothing: this is not the database that its outbox was written in ("+moved+"). "+meaning(recorded, present),
			"a copy for other purposes: give its engines brokers of their own, then `waybill database accept`. One that takes the other's place: stop the other's engines, compare what may be missing, then `waybill database accept`")
		return "", nil
	}
	if present == (outbox.Identity{}) {
		return "the server doesn't tell who it is, or is a standby: a copy or a failover is not noticed", nil
	}
	return "the database is the one that its outbox was written in", nil
}

// acceptFirst is the remedy of all that has stopped in a copy.
const acceptFirst = "see the check identity: no engine does anything in this database before it is accepted"

// unlessMoved is the remedy of what no engine does, which is no reason to remove it where none may
// do anything.
func (e *exam) unlessMoved(remedy string) string {
	if e.moved {
		return acceptFirst
	}
	return remedy
}

// meaning is how a database comes to differ in this way.
func meaning(recorded, present outbox.Identity) string {
	switch {
	case present.PromotedFrom(recorded):
		return "A standby was promoted, or the database was restored to a point in time. Commits that were not there yet are missing: of their events some were published, and of messages some were acknowledged whose effects are gone"
	case present.File != "":
		return "The file was copied, or restored from a backup. What was written to the other one since is missing here"
	case present.System == recorded.System:
		return "A dump was restored beside the original, or the cluster went back to an older timeline. What was written since is missing here"
	}
	return "A dump was restored in another cluster, or the database was replicated to it, or pg_upgrade made a new one. After a dump, what was written since is missing here"
}
