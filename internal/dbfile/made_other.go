//go:build !linux

package dbfile

// Made isn't known here.
func Made(string) string { return "" }
