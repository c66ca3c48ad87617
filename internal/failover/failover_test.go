// Package failover_test holds what engines do on a database that isn't the one that its
// outbox was written in: a promoted standby, a restored dump or backup, a copied file.
package failover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/postgres"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// A copied file is another database: its engines publish nothing until somebody accepts it,
// and the original's go on.
func TestCopy_OfASQLiteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "post.db")
	original := newService(t, openSQLite(t, path))
	stop := original.run("")
	original.save("sent")
	original.publishes("sent")
	stop()
	original.save("waits")
	copied := filepath.Join(t.TempDir(), "copy.db")
	_, err := original.db.DB().ExecContext(t.Context(), "VACUUM INTO ?", copied)
	require.NoError(t, err)

	other := newService(t, openSQLite(t, copied))
	stop = other.run("")
	text := other.refuses()
	require.Contains(t, text, "file: it was ")
	require.Contains(t, text, "`waybill database accept`")
	other.save("of the copy")
	other.silent("waits", "of the copy")
	require.Contains(t, other.accept(), "file: it was ")
	other.publishes("waits")
	other.publishes("of the copy")
	waittest.Until(t, func() bool { return len(other.reasons()) == 0 }, "all is well")
	stop()
	require.Empty(t, other.accept(), "there is nothing more to accept")

	original.run("")
	original.publishes("waits")
}

func openSQLite(t *testing.T, path string) uow.Provider {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// A file that was moved is the same one.
func TestMove_OfASQLiteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "post.db")
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	s := newService(t, db)
	stop := s.run("")
	s.save("one")
	s.publishes("one")
	stop()
	require.NoError(t, db.Close())
	moved := filepath.Join(filepath.Dir(path), "moved.db")
	require.NoError(t, os.Rename(path, moved))
	s = newService(t, openSQLite(t, moved))
	s.run("")
	s.save("two")
	s.publishes("two")
}

// A dump that is restored beside the original has another number, and one in another
// cluster another system identifier.
func TestDump_RestoredElsewhere(t *testing.T) {
	elsewhere := newCluster(t)
	past, _ := dbtest.Pooled(t)
	s := newService(t, openPostgres(t, past))
	stop := s.run("")
	s.save("sent")
	s.publishes("sent")
	stop()
	s.save("waits")

	dump := filepath.Join(newDirectory(t), "dump")
	run(t, "pg_dump", "--format=custom", "--file="+dump, past)
	beside, _ := dbtest.Pooled(t)
	for what, at := range map[string]string{"database": beside, "system": elsewhere.dsn()} {
		t.Run(what, func(t *testing.T) {
			run(t, "pg_restore", "--no-owner", "--dbname="+at, dump)
			restored := newService(t, openPostgres(t, at))
			stop := restored.run(outbox.Continue) // that is about failovers only
			require.Contains(t, restored.refuses(), what+": it was ")
			restored.silent("waits")
			restored.accept()
			restored.publishes("waits")
			stop()
		})
	}
}

// F-54: a standby that is promoted while an engine runs: it publishes nothing there until somebody
// accepts it, or at once if the configuration says so.
func TestFailover_ToAStandby(t *testing.T) {
	t.Parallel()
	for _, on := range []outbox.OnFailover{outbox.Stop, outbox.Continue} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			primary, standby, s := replicated(t, on, time.Second)

			primary.kill()
			standby.promote()
			answers(t, s)
			if on == outbox.Stop { // within a third of the lease
				require.Contains(t, s.refuses(), "timeline: it was 00000001 and is 00000002")
				s.told("nothing is published from the database any more")
				s.save("after")
				s.silent("after")
				s.accept()
				s.told("the database was accepted, and is published from again")
			} else {
				s.save("after")
			}
			s.publishes("after")
			settled(t, s)
			waittest.Until(t, func() bool { return len(s.reasons()) == 0 }, "all is well")
		})
	}
}

// F-54: an engine that lives through a failover publishes nothing on the new primary by what it
// knew of the old one, however long it has until it renews its leases: what it would publish
// makes it look.
func TestFailover_F_54_NothingBeforeItHasLooked(t *testing.T) {
	t.Parallel()
	primary, standby, s := replicated(t, outbox.Stop, time.Minute)
	primary.kill()
	standby.promote()
	answers(t, s)
	s.save("after")
	require.Contains(t, s.refuses(), "timeline: it was 00000001 and is 00000002")
	s.silent("after")
}

// F-54: an old primary that comes back as it was, and takes writes, is used by nobody who has
// worked with the new one, though it is the first host of the DSN: a process had connections to
// both, and settled in one what it had claimed in the other.
func TestFailover_F_54_AnOldPrimaryThatComesBack(t *testing.T) {
	t.Parallel()
	primary, standby, s := replicated(t, outbox.Continue, time.Second)
	primary.kill()
	standby.promote()
	answers(t, s)
	s.save("after")
	s.publishes("after")
	settled(t, s)

	primary.start()
	there := openPostgres(t, standby.dsn())
	_, err := there.DB().ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	require.NoError(t, err)
	answers(t, s)
	var port string
	require.NoError(t, s.db.DB().NewRaw("SELECT inet_server_port()").Scan(t.Context(), &port))
	require.Equal(t, standby.port, port)
	waittest.Until(t, func() bool { return len(s.reasons()) == 0 }, "all is well")

	standby.kill()
	waittest.Until(t, func() bool {
		_, err = s.db.DB().ExecContext(t.Context(), "SELECT 1")
		return err != nil && strings.Contains(err.Error(), "old primary")
	}, "who is left is named")
	require.ErrorContains(t, err, primary.port+" is an old primary that came back (its timeline is 00000001, and this process has worked with 00000002)")
	require.ErrorContains(t, err, "make it a standby of the new primary")
	require.NotContains(t, err.Error(), "target_session_attrs")
}

// Who examines a standby is told that it is one, and nothing else of what can't work there.
func TestDoctor_OnAStandby(t *testing.T) {
	t.Parallel()
	_, standby, _ := replicated(t, outbox.Stop, time.Minute)
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: standby.dsn(), NoCreate: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	var wrong []string
	for _, f := range doctor.Examine(t.Context(), p, nil) {
		if f.Check == "connection" {
			require.Equal(t, doctor.Warning, f.Severity)
			require.Contains(t, f.What, "this is a standby")
			require.Contains(t, f.Remedy, "lead them to the primary")
		}
		if f.Severity != doctor.OK && f.Check != "settings" && f.Check != "checkpoints" {
			wrong = append(wrong, f.Check)
		}
	}
	require.Equal(t, []string{"connection"}, wrong)
}

// replicated is a service that has published on a primary, whose standby has all of it.
func replicated(t *testing.T, on outbox.OnFailover, lease time.Duration) (primary, standby *cluster, s *service) {
	t.Helper()
	primary = newCluster(t)
	standby = primary.copied("-R")
	standby.start()
	s = newService(t, openPostgres(t, fmt.Sprintf("postgres://waybill@127.0.0.1:%s,127.0.0.1:%s/waybill?target_session_attrs=read-write", primary.port, standby.port)))
	s.lease = lease
	s.run(on)
	s.save("before")
	s.publishes("before")
	settled(t, s)
	caughtUp(t, s)
	return primary, standby, s
}

// answers waits until the service's database does, after a server has ended.
func answers(t *testing.T, s *service) {
	t.Helper()
	waittest.Until(t, func() bool {
		_, err := s.db.DB().ExecContext(t.Context(), "SELECT 1")
		return err == nil
	}, "the database answers")
}

// settled waits until nothing is left to publish.
func settled(t *testing.T, s *service) {
	t.Helper()
	waittest.Until(t, func() bool {
		var waiting int
		return s.db.DB().NewRaw("SELECT count(*) FROM outbox_queue").Scan(t.Context(), &waiting) == nil && waiting == 0
	}, "all is settled")
}

// caughtUp waits until the standby has all that the primary has.
func caughtUp(t *testing.T, s *service) {
	t.Helper()
	waittest.Until(t, func() bool {
		var equal bool
		err := s.db.DB().NewRaw("SELECT COALESCE(bool_and(replay_lsn >= pg_current_wal_lsn()), false) FROM pg_stat_replication").Scan(t.Context(), &equal)
		require.NoError(t, err)
		return equal
	}, "the standby has everything")
}

// F-54: a restore to a point in time begins a timeline: what was committed later is missing, so
// nothing goes out before somebody has looked.
func TestRestore_ToAPointInTime(t *testing.T) {
	archive := newDirectory(t)
	primary := newCluster(t, "archive_mode=on", fmt.Sprintf("archive_command=cp %%p %s/%%f", archive))
	s := newService(t, openPostgres(t, primary.dsn()))
	stop := s.run("")
	s.save("before")
	s.publishes("before")
	settled(t, s)
	backup := primary.copied()
	stop()
	s.save("kept")
	exec := func(query string) {
		_, err := s.db.DB().ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	exec("SELECT pg_create_restore_point('here')")
	s.save("lost")
	var last string
	require.NoError(t, s.db.DB().NewRaw("SELECT pg_walfile_name(pg_switch_wal())").Scan(t.Context(), &last))
	waittest.Until(t, func() bool {
		_, err := os.Stat(filepath.Join(archive, last))
		return err == nil
	}, "the log is archived")

	require.NoError(t, os.WriteFile(filepath.Join(backup.dir, "recovery.signal"), nil, 0o600))
	if os.Getuid() == 0 {
		uid, gid := postgresUser(t)
		require.NoError(t, os.Chown(filepath.Join(backup.dir, "recovery.signal"), uid, gid))
	}
	backup.start(fmt.Sprintf("restore_command=cp %s/%%f %%p", archive), "recovery_target_name=here", "recovery_target_action=promote")
	restored := openPostgres(t, backup.dsn())
	waittest.Until(t, func() bool {
		var standby bool
		return restored.DB().NewRaw("SELECT pg_is_in_recovery()").Scan(t.Context(), &standby) == nil && !standby
	}, "the restore has ended")
	r := newService(t, restored)
	r.run("")
	require.Contains(t, r.refuses(), "timeline: it was 00000001 and is 00000002")
	r.silent("kept")
	r.accept()
	r.publishes("kept")
	require.NotContains(t, r.published(), "lost")
}

// A crash of the server takes back what was settled last, as settlements don't wait for its
// disk. An engine that lives through it publishes these rows again: they don't wait until
// their partitions change hands.
func TestCrash_OfTheServerBringsRowsBackOnce(t *testing.T) {
	t.Parallel()
	settings := []string{"wal_writer_delay=10000", "wal_writer_flush_after=0"} // what isn't flushed by a commit stays so
	server := newCluster(t, settings...)
	s := newService(t, openPostgres(t, server.dsn()))
	s.run("")
	copies := func(note string) (n int) {
		for _, p := range s.published() {
			if p == note {
				n++
			}
		}
		return n
	}
	repeated := 0
	for round := 0; repeated == 0; round++ { // a renewal that comes between makes it durable
		require.Less(t, round, 20, "no crash took back a settlement")
		note := fmt.Sprintf("of round %d", round)
		s.save(note)
		s.publishes(note)
		settled(t, s)
		server.kill()
		server.start(settings...)
		answers(t, s)
		settled(t, s)
		require.LessOrEqual(t, copies(note), 2)
		repeated = copies(note) - 1
	}
	waittest.Until(t, func() bool { return len(s.reasons()) == 0 }, "all is well")
}

// F-54: a standby that lacks the last commits gives their numbers to others. An engine that
// lives through the failover publishes these, too, though it has seen higher numbers: when
// somebody has accepted the database, or at once if the configuration says so.
func TestFailover_F_54_NumbersThatAreGivenAgain(t *testing.T) {
	t.Parallel()
	for _, on := range []outbox.OnFailover{outbox.Stop, outbox.Continue} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			primary, standby, s := replicated(t, on, time.Second)
			standby.kill() // what comes now it never gets
			const lost = 100
			for i := range lost {
				s.save(fmt.Sprintf("lost %d", i))
			}
			s.publishes(fmt.Sprintf("lost %d", lost-1))
			settled(t, s)
			highest := s.number()
			// An engine learns once a second up to where nothing appears any more.
			for i := range 3 {
				<-time.After(1100 * time.Millisecond)
				s.save(fmt.Sprintf("lost later %d", i))
				s.publishes(fmt.Sprintf("lost later %d", i))
			}
			primary.kill()
			standby.start()
			standby.promote()
			if on == outbox.Stop {
				s.refuses()
				s.accept()
			}
			answers(t, s)
			for i := range 5 { // also what comes once the engine has read all there is
				s.save(fmt.Sprintf("after %d", i))
				s.publishes(fmt.Sprintf("after %d", i))
			}
			require.Less(t, s.number(), highest)
			settled(t, s)
		})
	}
}
