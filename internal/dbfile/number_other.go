//go:build !unix

package dbfile

// Number isn't known here.
func Number(string) string { return "" }
