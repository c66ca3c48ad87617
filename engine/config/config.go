// Package config reads waybill.yaml. Variables such as
// WAYBILL_OUTBOX_RETRY_BASE_DELAY=1s override its keys, unknown keys are
// refused, and the mistakes of the file are reported together, then those of the
// settings of each database and broker, which its adapter knows.
//
// A program names the kinds of databases and brokers that its file may use;
// what it doesn't name isn't linked:
//
//	service, err := config.Load(ctx, "waybill.yaml", ordering.Domain, config.Kinds{
//		Providers: map[string]config.OpenProvider{"postgres": postgres.FromSettings},
//		Brokers:   map[string]broker.Opener{"kafka": kafka.FromSettings},
//	})
package config

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

// Kinds says which adapters a file may name.
type Kinds struct {
	Providers map[string]OpenProvider  // By dialect.
	Brokers   map[string]broker.Opener // By kind.
	// Logger is where brokers log, and the engine. Defaults to slog.Default().
	Logger *slog.Logger
}

// OpenProvider opens a database from its part of the file. Each adapter exports
// one, such as postgres.FromSettings.
type OpenProvider func(ctx context.Context, name string, s broker.Settings) (uow.Provider, error)

// Load reads a file and opens everything that it names: [Parse], then
// [File.Open].
func Load(ctx context.Context, path string, d *domain.Domain, k Kinds) (*Service, error) {
	f, err := Parse(path)
	if err != nil {
		return nil, err
	}
	return f.Open(ctx, d, k)
}
