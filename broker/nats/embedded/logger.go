package embedded

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats-server/v2/server"
)

// logger passes on what needs somebody's attention.
type logger struct{ to *slog.Logger }

var _ server.Logger = logger{}

func (l logger) log(level slog.Level, format string, values []any) {
	cmp.Or(l.to, slog.Default()).Log(context.Background(), level, fmt.Sprintf(format, values...), "component", "nats-server")
}

func (l logger) Warnf(format string, v ...any)  { l.log(slog.LevelWarn, format, v) }
func (l logger) Errorf(format string, v ...any) { l.log(slog.LevelError, format, v) }
func (l logger) Fatalf(format string, v ...any) { l.log(slog.LevelError, format, v) }
func (logger) Noticef(string, ...any)           {}
func (logger) Debugf(string, ...any)            {}
func (logger) Tracef(string, ...any)            {}
