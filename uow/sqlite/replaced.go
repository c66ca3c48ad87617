package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/internal/lifeline"
)

// openFile is the file that this process has opened. Where another stands in its place, as
// somebody has restored a backup meanwhile, what is open goes on without a name: all that is
// written to it is gone when the last process closes it. A connection that is opened then reads
// the new file by the log of the old one, which is still beside it. So nothing goes on.
type openFile struct {
	path    string
	number  atomic.Pointer[string] // nil: it isn't known yet
	logGone atomic.Bool            // what is beside it was removed under a connection
}

// opened notes which file it is, once it is open for writing: that may be what makes it another.
func (f *openFile) opened() {
	number := dbfile.Number(f.path)
	f.number.Store(&number)
}

func (f *openFile) check() error {
	if was := f.number.Load(); was != nil && isAnother(f.path, *was) {
		return fmt.Errorf("sqlite: %s was replaced, moved or removed while this process has it open, and what would be written now would be lost: end all processes that have it open, remove %s-wal and %s-shm, which belong to the file before, and start them again",
			f.path, f.path, f.path)
	}
	if f.logGone.Load() {
		return fmt.Errorf("sqlite: %s-wal or %s-shm was removed while this process has %s open: what was committed last may be lost, and another process that writes would damage the file: end all processes that have it open, start them again, and see with `waybill doctor` whether it is whole",
			f.path, f.path, f.path)
	}
	return nil
}

// isAnother says whether another file stands where this one was, or none.
func isAnother(path, was string) bool {
	is := dbfile.Number(path)
	if was == "" || is == was {
		return false
	}
	_, err := os.Stat(path)
	return is != "" || errors.Is(err, fs.ErrNotExist) // otherwise it can't be looked at, whatever it is
}

// logFiles are the numbers of the log of a connection and of its index.
type logFiles struct{ wal, shm string }

// logOf has the connection read, from when on SQLite keeps its lock on the file, so that no
// process that closes it as the last one removes the log.
func (f *openFile) logOf(ctx context.Context, conn driver.Conn) logFiles {
	c, ok := conn.(driver.ExecerContext)
	if !ok {
		return logFiles{}
	}
	if _, err := c.ExecContext(ctx, "PRAGMA schema_version", nil); err != nil {
		return logFiles{} // whoever uses it will hear of it
	}
	return logFiles{dbfile.Number(f.path + "-wal"), dbfile.Number(f.path + "-shm")}
}

// checkLog is check for a connection that is open.
func (f *openFile) checkLog(l logFiles) error {
	if isAnother(f.path+"-wal", l.wal) || isAnother(f.path+"-shm", l.shm) {
		f.logGone.Store(true)
	}
	return f.check()
}

// ofFile are connections to that file, and to no other.
type ofFile struct {
	driver.Connector
	file *openFile
}

// Connect implements [driver.Connector].
func (c ofFile) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.file.check(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &fileConn{conn.(lifeline.FileConn), c.file, c.file.logOf(ctx, conn)}, nil
}

type fileConn struct {
	lifeline.FileConn
	file *openFile
	log  logFiles
}

// ResetSession implements [driver.SessionResetter]. Who asks for a connection is told by Connect.
func (c *fileConn) ResetSession(ctx context.Context) error {
	if c.file.checkLog(c.log) != nil {
		return driver.ErrBadConn
	}
	return c.FileConn.ResetSession(ctx)
}
