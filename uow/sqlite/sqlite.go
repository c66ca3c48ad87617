// Package sqlite is the provider for SQLite files: one writer, many readers.
//
// Several processes on one host may share a file. A file on a network has no
// locks to rely on, and is refused where that can be seen.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbfile"
	"github.com/waybill-go/waybill/internal/lifeline"
	"github.com/waybill-go/waybill/uow"
)

const (
	defaultName = "default"
	maxReaders  = 8
	// busyTimeout is how long a statement waits for another process.
	busyTimeout = 10 * time.Second
	// defaultWriterTimeout is how long a unit waits for those of its own process.
	defaultWriterTimeout = 15 * time.Second
	// defaultNestedTimeout is how long it does so inside the function of another unit,
	// where it can't be told whether that one is in its way.
	defaultNestedTimeout = 3 * time.Second
)

// Config says which file.
type Config struct {
	// Name of the provider, shown to operators. Defaults to "default".
	Name string
	// Path of the file, which is created if it does not exist, for its owner alone;
	// its directory is not. Required.
	Path string
	// Logger hears if others may read a file that existed. Defaults to
	// slog.Default().
	Logger *slog.Logger
}

// FromSettings opens the provider called name from its part of a configuration
// file: the key path.
func FromSettings(ctx context.Context, name string, s broker.Settings) (uow.Provider, error) {
	cfg, err := ConfigFrom(name, s)
	if err != nil {
		return nil, err
	}
	return Open(ctx, cfg)
}

// ConfigFrom is what FromSettings opens.
func ConfigFrom(name string, s broker.Settings) (Config, error) {
	var keys struct {
		Path string `yaml:"path"`
	}
	err := s.Decode(&keys)
	return Config{Name: name, Path: keys.Path}, err
}

// Open opens the file, in WAL mode and with synchronous=FULL: a commit is on the
// disk when it returns, and survives a power cut.
//
// The provider's DB is the file's one writer in this process. It serves one
// transaction at a time, in the order in which they came, so whoever holds a
// transaction holds up all units of work. It can't prepare statements outside
// transactions. The reader never waits for it.
//
// A unit waits 15 s for those of its process. One that was begun inside another, with
// the context from outside, fails with [uow.ErrOuterContext]: at once if the other has
// that very context and the writer, after 3 s if that can't be told.
func Open(ctx context.Context, cfg Config) (uow.Provider, error) {
	p := &provider{name: cmp.Or(cfg.Name, defaultName)}
	path, err := cfg.path()
	if err == nil {
		err = create(path)
	}
	if err == nil {
		err = p.open(ctx, path)
	}
	if err == nil {
		if err = p.check(ctx, path); err != nil {
			_ = p.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite: provider %q: %w", p.name, err)
	}
	if open := dbfile.Look(path); len(open) > 0 {
		cmp.Or(cfg.Logger, slog.Default()).Warn("others than its owner may read the database, which holds all that the service knows; unless that is meant, do what remedy says",
			"provider", p.name, "files", open.String(), "remedy", open.Remedy())
	}
	return p, nil
}

// creating is held while a file is made: closing a file takes from the whole process
// the locks that SQLite has on it, so nobody may open it before it is closed.
var creating sync.Mutex

// create makes the file if there is none: SQLite would let everybody read it whom
// the umask doesn't keep from it. What it makes beside a file has the file's mode.
func create(path string) error {
	creating.Lock()
	defer creating.Unlock()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // opening it will say what is wrong
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, dbfile.Private)
	switch {
	case errors.Is(err, fs.ErrExist): // another process was faster, or it is a link to nowhere
		return nil
	case err != nil:
		return fmt.Errorf("it can't be made; the process needs the right to write its directory: %w", err)
	}
	return f.Close()
}

// path checks cfg and returns the file's absolute path.
func (cfg Config) path() (string, error) {
	switch {
	case cfg.Path == "":
		return "", errors.New("Config.Path is missing: give a file such as ./ordering.db")
	case strings.Contains(cfg.Path, ":memory:") || strings.HasPrefix(cfg.Path, "file:"):
		return "", fmt.Errorf("Config.Path is %q: give the plain path of a file; writer and readers don't share a database in memory, so a test takes a file in t.TempDir()", cfg.Path)
	}
	path, err := filepath.Abs(cfg.Path)
	if err != nil {
		return "", fmt.Errorf("Config.Path %q: %w", cfg.Path, err)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("directory %s can't be used; create it, or correct Config.Path: %w", dir, err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory; correct Config.Path", dir)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a file; correct Config.Path", path)
	}
	if fs := networkFS(dir); fs != "" {
		return "", fmt.Errorf("%s is on a network file system (%s), where SQLite's locks can't be trusted; use a local disk, or PostgreSQL", dir, fs)
	}
	return path, nil
}

func (p *provider) open(ctx context.Context, path string) error {
	name := filepath.ToSlash(path)
	if !strings.HasPrefix(name, "/") {
		name = "/" + name // a volume, as in file:///C:/ordering.db
	}
	dsn := func(more url.Values) string {
		more.Set("_busy_timeout", fmt.Sprint(busyTimeout.Milliseconds()))
		more.Set("_foreign_keys", "on")
		return (&url.URL{Scheme: "file", Path: name, RawQuery: more.Encode()}).String()
	}
	writing, err := sqlite.NewConnector(dsn(url.Values{"_txlock": {"immediate"}, "_journal_mode": {"WAL"}, "_synchronous": {"FULL"}}))
	if err != nil {
		return err
	}
	reading, err := sqlite.NewConnector(dsn(url.Values{"_query_only": {"on"}}))
	if err != nil {
		return err
	}
	p.file = &openFile{path: path}
	writing, reading = lifeline.Connector(ctx, preparing{writing}), ofFile{lifeline.Connector(ctx, preparing{reading}), p.file}
	pool := func(c driver.Connector) *bun.DB {
		db := sql.OpenDB(c)
		db.SetMaxIdleConns(maxReaders)
		return bun.NewDB(db, sqlitedialect.New(), bun.WithDiscardUnknownColumns())
	}
	p.writer = &oneWriter{Connector: writing, file: p.file, name: p.name, timeout: defaultWriterTimeout, nested: defaultNestedTimeout}
	p.db, p.reader = pool(p.writer), pool(reading)
	p.reader.SetMaxOpenConns(maxReaders)
	return nil
}

type provider struct {
	name       string
	writer     *oneWriter
	db, reader *bun.DB
	file       *openFile
}

var _ uow.Provider = (*provider)(nil)

// check opens the file for the first time.
func (p *provider) check(ctx context.Context, path string) error {
	mode, err := p.mode(ctx)
	if err == nil {
		// WAL mode is refused quietly; what the reader needs shows on its first read.
		_, err = p.reader.ExecContext(ctx, "SELECT count(*) FROM sqlite_master")
	}
	switch {
	case err == nil && mode == "wal":
		p.file.opened()
		return nil
	case err == nil:
		return fmt.Errorf("%s can't be used in WAL mode (it stays in mode %s): its file system has no shared memory; use a local disk", path, mode)
	case is(err, codeNotADB):
		return fmt.Errorf("%s is not a SQLite database; correct Config.Path: %w", path, err)
	case is(err, codeCorrupt):
		return fmt.Errorf("%s is damaged: restore it from a backup; if it has just been put there, %s-wal and %s-shm belong to the file before: end all processes that have it open, and remove them: %w", path, path, path, err)
	case is(err, codeCantOpen), is(err, codeReadOnly), is(err, codePerm):
		return fmt.Errorf("%s can't be opened for writing; the process needs the right to write the file and its directory: %w", path, err)
	case is(err, codeFull), is(err, codeIOErr):
		left := ""
		if n, known := dbfile.Room(path); known {
			left = fmt.Sprintf(" (it has %d kB left)", n>>10)
		}
		return fmt.Errorf("%s can't be opened, as its disk is full%s or fails, or a quota or a limit on the size of files (ulimit -f) is reached: make room, or see what the system's log says: %w", path, left, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// mode is the file's, which is WAL from now on. If others open a new file at the same time,
// SQLite refuses to change its mode without waiting for them.
func (p *provider) mode(ctx context.Context) (mode string, err error) {
	for begin := time.Now(); ; {
		err = p.db.NewRaw("PRAGMA journal_mode").Scan(ctx, &mode)
		if !is(err, codeBusy) || time.Since(begin) > busyTimeout {
			return mode, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return mode, err
		}
	}
}

func (p *provider) Name() string         { return p.name }
func (p *provider) DB() *bun.DB          { return p.db }
func (p *provider) Reader() *bun.DB      { return p.reader }
func (p *provider) Session() uow.Session { return &session{p: p} }

func (p *provider) Retryable(err error) bool { return is(err, codeBusy) || is(err, codeLocked) }

// Close lets a transaction in progress end; its connection is closed then.
func (p *provider) Close() error {
	return errors.Join(p.reader.Close(), p.db.Close())
}

// SQLite's result codes, without what extends them.
const (
	codePerm     = 3
	codeBusy     = 5
	codeLocked   = 6
	codeReadOnly = 8
	codeIOErr    = 10
	codeCorrupt  = 11
	codeFull     = 13
	codeCantOpen = 14
	codeNotADB   = 26
)

func is(err error, code int) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == code
}
