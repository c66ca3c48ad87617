// Package dbfile tells who may read a SQLite database: its file, and the log and
// the index that are beside it while it is open.
package dbfile

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

// Private is the mode of a database that only its owner may read and write.
// SQLite gives the files beside it the same one.
const Private fs.FileMode = 0o600

// Exposed are the files of a database that others than their owner may read or
// write. Where files have no such modes there are none.
type Exposed []file

type file struct {
	path string
	mode fs.FileMode
}

// Look finds them.
func Look(path string) Exposed {
	var found Exposed
	if runtime.GOOS == "windows" {
		return nil
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err == nil && info.Mode().Perm()&^Private != 0 {
			found = append(found, file{path + suffix, info.Mode().Perm()})
		}
	}
	return found
}

func (e Exposed) String() string {
	var all []string
	for _, f := range e {
		all = append(all, fmt.Sprintf("%s (%04o)", f.path, f.mode))
	}
	return strings.Join(all, ", ")
}

// Remedy is the command that closes them.
func (e Exposed) Remedy() string {
	all := []string{"chmod 600"}
	for _, f := range e {
		all = append(all, "'"+strings.ReplaceAll(f.path, "'", `'\''`)+"'")
	}
	return strings.Join(all, " ")
}
