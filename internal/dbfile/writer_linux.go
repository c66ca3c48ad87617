package dbfile

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// writeLock is the byte of a -shm file that a process locks which writes. It is SQLite's
// WAL_WRITE_LOCK, which never changes as it is part of the format.
const writeLock = 120

// Writer is the process that has a database in WAL mode locked for writing, such as
// "process 4711 (sqlite3)". "": nobody has, or it isn't known. Nothing is opened beside the
// database: closing it would take from this process the locks that SQLite has on it.
func Writer(path string) string {
	number := Number(path + "-shm")
	locks, err := os.Open("/proc/locks")
	if err != nil || number == "" {
		return ""
	}
	defer func() { _ = locks.Close() }()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: POSIX  ADVISORY  WRITE 4711 fe:00:5326705 120 120
		f := strings.Fields(lines.Text())
		if len(f) != 8 || f[3] != "WRITE" || !strings.HasSuffix(f[5], ":"+number) {
			continue
		}
		from, _ := strconv.Atoi(f[6])
		to, err := strconv.Atoi(f[7])
		if from > writeLock || err == nil && to < writeLock { // "EOF": as far as the file goes
			continue
		}
		return process(f[4])
	}
	return ""
}

// process names one, unless it is in another container, where its number isn't known here.
func process(id string) string {
	if n, err := strconv.Atoi(id); err != nil || n <= 0 {
		return ""
	}
	name, err := os.ReadFile("/proc/" + id + "/comm")
	if err != nil {
		return "process " + id
	}
	return fmt.Sprintf("process %s (%s)", id, strings.TrimSpace(string(name)))
}
