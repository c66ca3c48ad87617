package dbfile

import (
	"time"

	"golang.org/x/sys/unix"
)

// Made is when a file was made, which tells it from an earlier one that had its number: ext4
// and others give the number of a file that was removed to the next one. "": it isn't known.
func Made(path string) string {
	var stat unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &stat) != nil || stat.Mask&unix.STATX_BTIME == 0 || stat.Btime.Sec == 0 {
		return ""
	}
	return time.Unix(stat.Btime.Sec, int64(stat.Btime.Nsec)).UTC().Format(time.RFC3339Nano)
}
