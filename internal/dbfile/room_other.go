//go:build !linux && !darwin

package dbfile

// Room isn't known here.
func Room(string) (bytes int64, ok bool) { return 0, false }
