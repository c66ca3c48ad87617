//go:build linux || darwin

package dbfile

import "golang.org/x/sys/unix"

// Room is how many bytes are left for a file to grow, to one who isn't root. ok is false: it isn't known.
func Room(path string) (bytes int64, ok bool) {
	var s unix.Statfs_t
	if unix.Statfs(path, &s) != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true //nolint:unconvert // Its type differs from system to system.
}
