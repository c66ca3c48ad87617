package sqlite

import (
	"fmt"
	"time"

	"github.com/waybill-go/waybill/internal/dbfile"
)

// lockedError says that another process has the file locked for writing. It is [codeBusy]
// to those who ask for SQLite's code.
type lockedError struct {
	provider, path string
	by             string // who that is, if it is known
	err            error
}

func (e *lockedError) Error() string {
	who, which := "another process", " (`lsof "+e.path+"` lists all that have the file open)"
	if e.by != "" {
		who, which = e.by, ""
	}
	return fmt.Sprintf("sqlite: provider %q: %s has %s locked for writing, and nobody else can write: end its transaction, or that process%s: %v", e.provider, who, e.path, which, e.err)
}

func (e *lockedError) Unwrap() error { return e.err }

// noted remembers whether the file was locked when the writer was last used: those who wait
// at the gate meanwhile wait for that, too. Whoever calls it is inside.
func (w *oneWriter) noted(err error) error {
	if !is(err, codeBusy) {
		w.locked.Store(nil)
		return w.unwritable(err)
	}
	locked := &lockedError{provider: w.name, path: w.file.path, by: dbfile.Writer(w.file.path), err: err}
	w.locked.Store(locked)
	return locked
}

// unwritable adds to an error which file takes no writes, and what helps.
func (w *oneWriter) unwritable(err error) error {
	var why string
	switch {
	case is(err, codeFull):
		why = "can't grow, as its disk is full, or a quota is used up: make room"
	case is(err, codeReadOnly):
		why = "can't be written: mount its file system for writing, and give the process the right to write the file and its directory"
	default:
		return err
	}
	return fmt.Errorf("sqlite: provider %q: %s %s: %w", w.name, w.file.path, why, err)
}

// late is why somebody has not been let in for so long.
func (w *oneWriter) late(waited time.Duration) error {
	if locked := w.locked.Load(); locked != nil {
		return locked
	}
	return fmt.Errorf("sqlite: provider %q: the writer was busy for %v: a transaction is held open that long, or a second unit of work was opened inside the first by the context from outside it; use the context that Do hands to its function%s", w.name, waited, w.has())
}
