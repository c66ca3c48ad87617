package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

// A process that runs for long is found if nothing that it has set will end it.
func TestProcesses_IdleForLong(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		old := p.ago(41 * 24 * time.Hour)
		p.exec(t, "INSERT INTO processes (process, id, version, status, state, began_at, last_at) VALUES"+
			" ('library.lending', 'l1', 1, 'running', '{}', "+old+", "+old+"), ('library.lending', 'l2', 1, 'running', '{}', "+old+", "+p.ago(0)+")")
		p.exec(t, "INSERT INTO subscription_runs (subscription, run) VALUES ('library.lending.library.loan', 'library/r1')")
		p.has(t, "processes", Warning, "process library.lending", "1 process has heard nothing for 30 days or longer", "waybill processes list --idle --process library.lending")
		set := timerdb.Set(timerdb.Timer{Owner: process.Owner("library.lending", "l1"), Name: "due", At: time.Now().Add(time.Hour), Row: outboxdbtest.Row("o-1")})
		require.NoError(t, p.Session().Commit(t.Context(), []uow.Statement{{Query: set, Rows: -1}}))
		require.Empty(t, p.examine(t), "its timer wakes it")
	})
}

// Processes that run under a name that no program has any more are found.
func TestProcesses_NobodyHearsForThem(t *testing.T) {
	each(t, func(t *testing.T, p *patient) {
		p.exec(t, "INSERT INTO processes (process, id, version, status, state) VALUES ('library.lending', 'l1', 1, 'running', '{}'), ('library.lending', 'l2', 1, 'running', '{}')")
		p.exec(t, "INSERT INTO subscription_runs (subscription, run) VALUES ('library.loans.library.loan', 'library/r1')")
		p.has(t, "processes", Warning, "process library.lending", "2 processes run, and no program that has this process", "give it its old name back")
		p.exec(t, "INSERT INTO subscription_runs (subscription, run) VALUES ('library.lending.library.loan', 'library/r1')")
		require.Empty(t, p.examine(t), "a program has it")
	})
}
