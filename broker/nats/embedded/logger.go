package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// logger passes on what needs somebody's attention, and keeps why the server
// couldn't start: it tells nobody else.
type logger struct {
	to *slog.Logger

	mu   sync.Mutex
	died error
}

var _ server.Logger = (*logger)(nil)

func (l *logger) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died
}

func (l *logger) log(level slog.Level, message string) {
	l.to.Log(context.Background(), level, "embedded: the NATS server reports", "detail", message)
}

func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.died = fmt.Errorf(format, v...)
}

func (l *logger) Warnf(format string, v ...any) { l.log(slog.LevelWarn, fmt.Sprintf(format, v...)) }

func (l *logger) Errorf(format string, v ...any) { l.log(slog.LevelError, fmt.Sprintf(format, v...)) }
func (*logger) Noticef(string, ...any)           {}
func (*logger) Debugf(string, ...any)            {}
func (*logger) Tracef(string, ...any)            {}
