// Package logtest keeps what is logged in tests.
package logtest

import (
	"bytes"
	"strings"
	"sync"
)

// Log is what was written to it. The zero value is empty. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has says whether what is in it.
func (l *Log) Has(what string) bool { return strings.Contains(l.String(), what) }
