package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// ObservatoryConfig is what an observatory looks at.
type ObservatoryConfig struct {
	// Providers are the databases, each with a name of its own. At least one.
	Providers []uow.Provider
	// Retention says how long rows stay that are given up here.
	Retention outbox.Retention
	// Server is the HTTP server. Without Server.Addr there is only
	// [Engine.Handler].
	Server Server
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// NewObservatory returns an engine that runs nothing: it serves the page and the
// API from the databases alone, for those who don't have the application's code at
// hand. What only a process knows that publishes or handles, such as breakers and
// throughput, is null there, and so are subscriptions missing, though not their
// dead letters.
//
// Its databases must have their tables when it starts, and it opens and closes
// none.
func NewObservatory(cfg ObservatoryConfig) (*Engine, error) {
	e := newEngine(Config{Server: cfg.Server, Outbox: outbox.Config{Retention: cfg.Retention}, Logger: cfg.Logger})
	w := &wiring{Engine: e}
	w.checkServer()
	if len(cfg.Providers) == 0 {
		w.fail("Providers is empty: add what postgres.Open or sqlite.Open returned")
	}
	var names []string
	for _, p := range cfg.Providers {
		if slices.Contains(names, p.Name()) {
			w.fail("two providers have the name %q: give each one of its own", p.Name())
		}
		names = append(names, p.Name())
		d := newDatabase(p, e.log)
		d.schema.outbox, d.observed = true, true
		e.databases = append(e.databases, d)
	}
	if err := errors.Join(w.errs...); err != nil {
		return nil, fmt.Errorf("engine: observatory: %w", err)
	}
	e.equip()
	return e, nil
}
