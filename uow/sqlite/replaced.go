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
	path   string
	number atomic.Pointer[string] // nil: it isn't known yet
}

// opened notes which file it is, once it is open for writing: that may be what makes it another.
func (f *openFile) opened() {
	number := dbfile.Number(f.path)
	f.number.Store(&number)
}

func (f *openFile) check() error {
	was := f.number.Load()
	if was == nil || *was == "" {
		return nil
	}
	is := dbfile.Number(f.path)
	if is == *was {
		return nil
	}
	if _, err := os.Stat(f.path); is == "" && !errors.Is(err, fs.ErrNotExist) {
		return nil // whatever it is, the file can't be looked at
	}
	return fmt.Errorf("sqlite: %s was replaced, moved or removed while this process has it open, and what would be written now would be lost: end all processes that have it open, remove %s-wal and %s-shm, which belong to the file before, and start them again",
		f.path, f.path, f.path)
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
	return &fileConn{conn.(lifeline.FileConn), c.file}, nil
}

type fileConn struct {
	lifeline.FileConn
	file *openFile
}

// ResetSession implements [driver.SessionResetter]. Who asks for a connection is told by Connect.
func (c *fileConn) ResetSession(ctx context.Context) error {
	if c.file.check() != nil {
		return driver.ErrBadConn
	}
	return c.FileConn.ResetSession(ctx)
}
