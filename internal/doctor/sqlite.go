package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/internal/dbrows"
)

func (e *exam) file(ctx context.Context, db bun.IDB) (string, error) {
	var version string
	err := db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version)
	return "SQLite " + version, err
}

// pragmas holds the connections of this process to what uow/sqlite asks for.
func (e *exam) pragmas(ctx context.Context, db bun.IDB) (string, error) {
	var mode string
	if err := db.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return "", err
	}
	if mode != "wal" {
		e.add(Critical, "journal_mode", "it is "+mode+": readers and the writer wait for each other, and other processes are locked out", "PRAGMA journal_mode = WAL, on a local disk")
	}
	var synchronous int // of a connection that writes
	if err := e.provider.DB().QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous); err != nil {
		return "", err
	}
	if synchronous < 2 {
		e.add(Critical, "synchronous", fmt.Sprintf("it is %d, below FULL (2): a power cut can undo commits whose events were published", synchronous), "PRAGMA synchronous = FULL on every connection that writes")
	}
	return "WAL, synchronous = FULL", nil
}

func (e *exam) path(ctx context.Context, db bun.IDB) (path string, err error) {
	err = db.QueryRowContext(ctx, "SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&path)
	return path, err
}

// modes looks at who may read the files: whoever may reads every event.
func (e *exam) modes(ctx context.Context, db bun.IDB) (string, error) {
	path, err := e.path(ctx, db)
	if err != nil {
		return "", err
	}
	if open := dbfile.Look(path); len(open) > 0 {
		e.add(Warning, path, "others than its owner may read the database: "+open.String(), open.Remedy())
	}
	return "only their owner may read its files", nil
}

// wal looks at the log's size: it grows while a reader keeps it from being written
// back.
func (e *exam) wal(ctx context.Context, db bun.IDB) (string, error) {
	path, err := e.path(ctx, db)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path + "-wal")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no log at the moment", nil
	case err != nil:
		return "", err
	case info.Size() > e.limits.wal:
		e.add(Warning, path+"-wal", fmt.Sprintf("it has %d MB: a transaction that reads for long keeps it from being written back, and every read passes it", info.Size()>>20),
			"end what reads for long, then PRAGMA wal_checkpoint(TRUNCATE)")
	}
	return fmt.Sprintf("the log has %d KB", info.Size()>>10), nil
}

// disk looks at the room that is left: without it no commit succeeds.
func (e *exam) disk(ctx context.Context, db bun.IDB) (string, error) {
	path, err := e.path(ctx, db)
	if err != nil {
		return "", err
	}
	left, known := dbfile.Room(path)
	if !known {
		return "how much room is left isn't known on this system", nil
	}
	const remedy = "make room on its disk, or give it a larger one: what waits continues by itself"
	switch what := fmt.Sprintf("its disk has %d MB left", left>>20); {
	case left < e.limits.room/16:
		e.add(Critical, path, what+": nothing is saved, published or handled once that is used up", remedy)
	case left < e.limits.room:
		e.add(Warning, path, what, remedy)
	}
	return fmt.Sprintf("%d MB are left", left>>20), nil
}

// committed is another number once another connection has committed.
const committed = "PRAGMA data_version"

// lock looks for a process that has the file locked for writing for long. Who asks for the
// lock and lets go of it has written nothing. SQLite serves those who wait in no order: to
// wait in vain while others commit is no sign of one who keeps it.
func (e *exam) lock(ctx context.Context, db bun.IDB) (string, error) {
	path, err := e.path(ctx, db)
	if err != nil {
		return "", err
	}
	var patience, before, after int // of the connection that writes, in milliseconds: SQLite's wait isn't ended by a context
	writer := e.provider.DB()
	if err := errors.Join(writer.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&patience), writer.QueryRowContext(ctx, committed).Scan(&before)); err != nil {
		return "", err
	}
	wait := func(ms int64) error {
		_, err := writer.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", ms))
		return err
	}
	if err := wait(e.limits.lock.Milliseconds()); err != nil {
		return "", err
	}
	tx, err := writer.BeginTx(ctx, nil)
	if err == nil {
		err = tx.Rollback()
	}
	if back := wait(int64(patience)); back != nil {
		return "", back
	}
	if err == nil || !e.provider.Retryable(err) {
		return "nobody has the file locked for writing for long", err
	}
	if err := writer.QueryRowContext(ctx, committed).Scan(&after); err != nil || after != before {
		return "others write all the time, and nobody has the file locked for long", err
	}
	who, end := "another process", "find it among those that have the file open, as `lsof` lists them, and end it or its transaction"
	if by := dbfile.Writer(path); by != "" {
		who, end = by, "end it or its transaction"
	}
	e.add(Critical, path, fmt.Sprintf("%s has had it locked for writing for %v or longer: nobody else can write, and nothing is published or handled", who, e.limits.lock), end)
	return "", nil
}

// integrity reads the whole file, as far as the time lets it.
func (e *exam) integrity(ctx context.Context, db bun.IDB) (string, error) {
	limited, cancel := context.WithTimeout(ctx, e.limits.integrity)
	defer cancel()
	damaged := func(how string) {
		e.add(Critical, "", "the file is damaged: "+how, "stop all processes, keep a copy of the file and its -wal, and restore a backup, or save what can be read with sqlite3's .recover")
	}
	err := dbrows.Each(limited, db, "PRAGMA quick_check(5)", func(scan func(...any) error) error {
		var text string
		err := scan(&text)
		if err == nil && text != "ok" {
			damaged(text)
		}
		return err
	})
	switch {
	case err == nil:
		return "quick_check finds nothing", nil
	case limited.Err() != nil:
		return fmt.Sprintf("quick_check takes longer than %v, and was ended: run it by hand, sqlite3 FILE 'PRAGMA quick_check'", e.limits.integrity), ctx.Err()
	}
	damaged(err.Error())
	return "", nil
}
