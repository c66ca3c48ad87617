package embedded

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// lock is the directory's owner. The kernel gives it up when the process ends,
// however it ends.
type lock struct{ file *os.File }

func acquire(path string) (*lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	if err := windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, new(windows.Overlapped)); err != nil {
		_ = file.Close()
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			return nil, errTaken
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return &lock{file}, nil
}

func (l *lock) release() { _ = l.file.Close() }
