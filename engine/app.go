package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// App is an HTTP server of the application's own. It listens once everything else runs,
// and is the first to stop: requests that are being answered may end while events go on
// being published, for a third of the time that the stop has.
//
// A request's header must come within 5 s, all of it within 10 s, and its answer within
// 15 s; a handler that needs more says so with [http.ResponseController].
type App struct {
	// Addr is host:port to listen on; port 0 picks a free one, see [Engine.AppAddr].
	// Empty: no server.
	Addr    string
	Handler http.Handler
}

func (a App) check() error {
	switch {
	case a.Addr != "" && a.Handler == nil:
		return errors.New("App.Addr is set and App.Handler is not: give what answers there, or leave Addr out")
	case a.Addr == "" && a.Handler != nil:
		return errors.New("App.Handler is set and App.Addr is not: say where it listens, such as 127.0.0.1:8080, or leave Handler out")
	case a.Addr == "":
		return nil
	}
	if _, _, err := net.SplitHostPort(a.Addr); err != nil {
		return fmt.Errorf("App.Addr is %q: write host:port, such as 127.0.0.1:8080; port 0 picks a free one", a.Addr)
	}
	return nil
}

// AppAddr is where the application's server listens: App.Addr with the port that was
// picked. It is empty before the start, and without such a server.
func (e *Engine) AppAddr() string {
	if e.app == nil {
		return ""
	}
	return e.app.addr()
}

// stopApp lets requests end, and leaves the rest of the stop most of its time.
func (e *Engine) stopApp(ctx context.Context) error {
	if e.app == nil {
		return nil
	}
	cancel := func() {}
	if deadline, ok := ctx.Deadline(); ok {
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/3)
	}
	defer cancel()
	return e.app.stop(ctx)
}
