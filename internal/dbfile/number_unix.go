//go:build unix

package dbfile

import (
	"os"
	"strconv"
	"syscall"
)

// Number is the file system's number of a file, which a copy doesn't share, nor a file
// that is restored from a backup; one that is moved keeps it. "": it isn't known.
func Number(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return strconv.FormatUint(stat.Ino, 10)
}
