package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Migrate brings the tables of outbox, repository and subscription up to date
// in every provider of units. Units without an outbox need no tables of it. It
// may run while other processes do, and while they work.
func Migrate(ctx context.Context, units ...*uow.Manager) error {
	return forEach(units, func(s schema) error { return s.migrate(ctx) })
}

// Check returns an error that names the remedy unless [Migrate] has been run,
// for programs that write and run no engine: an engine does it when it starts.
func Check(ctx context.Context, units ...*uow.Manager) error {
	return forEach(units, func(s schema) error { return s.check(ctx) })
}

// MigrateProvider is Migrate for one provider, of which no context is known.
// partitions is the outbox's count in a new database; 0 is the database's own,
// or 64.
func MigrateProvider(ctx context.Context, p uow.Provider, partitions int) error {
	return schema{provider: p, outbox: true, partitions: partitions}.migrate(ctx)
}

// schema is what contexts expect of one provider's tables.
type schema struct {
	provider   uow.Provider
	outbox     bool
	partitions int // 0: any
}

func (s *schema) add(m *uow.Manager) error {
	if m.OutboxDisabled() {
		return nil
	}
	s.outbox = true
	n := m.Partitions()
	if n != 0 && s.partitions != 0 && n != s.partitions {
		return fmt.Errorf("it expects %d partitions of provider %q, and another context expects %d: give both the same number, or none", n, s.provider.Name(), s.partitions)
	}
	s.partitions = max(s.partitions, n)
	return nil
}

// forEach calls do for every provider of units, once, and returns all errors.
func forEach(units []*uow.Manager, do func(schema) error) error {
	var all []schema
	var errs []error
	for _, m := range units {
		for _, p := range m.Providers() {
			i := slices.IndexFunc(all, func(s schema) bool { return same(s.provider, p) })
			if i < 0 {
				i = len(all)
				all = append(all, schema{provider: p})
			}
			if err := all[i].add(m); err != nil {
				errs = append(errs, fmt.Errorf("engine: context %s: %w", m.Domain().Name(), err))
			}
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, s := range all {
		if err := do(s); err != nil {
			errs = append(errs, fmt.Errorf("engine: provider %q: %w", s.provider.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func (s schema) migrate(ctx context.Context) error {
	if s.outbox {
		if err := outbox.Migrate(ctx, s.provider.DB(), s.partitions); err != nil {
			return err
		}
	}
	if err := repository.Migrations().Up(ctx, s.provider.DB()); err != nil {
		return err
	}
	return subscription.Migrations().Up(ctx, s.provider.DB())
}

func (s schema) check(ctx context.Context) error {
	if s.outbox {
		if err := outbox.Migrations().Check(ctx, s.provider.Reader()); err != nil {
			return err
		}
		n, err := outbox.Partitions(ctx, s.provider.Reader())
		if err != nil {
			return err
		}
		if s.partitions != 0 && n != s.partitions {
			return &outbox.PartitionsError{Have: n, Want: s.partitions}
		}
	}
	if err := repository.Migrations().Check(ctx, s.provider.Reader()); err != nil {
		return err
	}
	return subscription.Migrations().Check(ctx, s.provider.Reader())
}
