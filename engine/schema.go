package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// Migrate brings the tables of outbox, timers, history, repository and subscription up to date
// in every provider of units. Units without an outbox need no tables of it, and none
// of timers. It may run while other processes do, and while they work.
//
// It also writes down which brokers each context sends to, see
// [outbox.Targets]. Other ones than a database has are an
// [*outbox.TargetsError]: to change them is up to [SetTargets] or
// `waybill migrate --set-targets`.
//
// The history of a context that has uow.Config.History, and had none while it already sent
// events, begins here: that takes six seconds, or longer while somebody writes for long.
func Migrate(ctx context.Context, units ...*uow.Manager) error {
	return forEach(units, func(s schema) error { return s.migrate(ctx) })
}

// Check returns an error that names the remedy unless [Migrate] has been run,
// for programs that write and run no engine: an engine does it when it starts.
func Check(ctx context.Context, units ...*uow.Manager) error {
	return forEach(units, func(s schema) error { return s.check(ctx, s.introduced) })
}

// MigrateProvider is Migrate for one provider, of which no context is known.
// partitions is the outbox's count in a new database; 0 is the database's own,
// or 64.
func MigrateProvider(ctx context.Context, p uow.Provider, partitions int) error {
	return schema{provider: p, outbox: true, partitions: partitions}.migrate(ctx)
}

// PlanMigration is what MigrateProvider, and an engine's start for each context,
// would do. It changes nothing.
func PlanMigration(ctx context.Context, p uow.Provider, partitions int, contexts map[string]outbox.Targets) (migrate.Plan, error) {
	plan, err := outboxdb.PlanMigration(ctx, p.Reader(), partitions, contexts)
	if err != nil {
		return plan, err
	}
	for _, set := range append([]migrate.Set{timerdb.Migrations()}, sets()...) {
		steps, err := set.Missing(ctx, p.Reader())
		if err != nil {
			return plan, err
		}
		plan.Steps = append(plan.Steps, steps...)
	}
	return plan, nil
}

// sets are the tables that every provider has.
func sets() []migrate.Set {
	return []migrate.Set{historydb.Migrations(), repository.Migrations(), subscription.Migrations(), command.Migrations(), process.Migrations(), projection.Migrations()}
}

// schema is what contexts expect of one provider's tables.
type schema struct {
	provider   uow.Provider
	outbox     bool
	partitions int                       // 0: any
	targets    map[string]outbox.Targets // by context
	published  map[string][]string       // by context
	renamed    map[string]map[string]string
	history    map[string]bool // contexts that keep one
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
	context := m.Domain().Name()
	if have, ok := s.targets[context]; ok && !have.Equal(m.Targets()) {
		return fmt.Errorf("it sends to %v, and with other units to %v: give both the same brokers", m.Targets(), have)
	}
	if s.targets == nil {
		s.targets, s.published, s.history = map[string]outbox.Targets{}, map[string][]string{}, map[string]bool{}
		s.renamed = map[string]map[string]string{}
	}
	s.targets[context], s.published[context], s.renamed[context] = m.Targets(), published(m), renamed(m)
	s.history[context] = s.history[context] || m.KeepsHistory()
	return nil
}

// forEach calls do for every provider of units, once, and returns all errors.
func forEach(units []*uow.Manager, do func(schema) error) error {
	var all []schema
	var errs []error
	for i, m := range units {
		if m == nil {
			errs = append(errs, fmt.Errorf("engine: units[%d] are nil: give what uow.New returned, and look at its error", i))
			continue
		}
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
	db := s.provider.DB()
	if s.outbox {
		if err := outboxdb.Migrate(ctx, db, s.partitions); err != nil {
			return err
		}
		if err := timerdb.Migrations().Up(ctx, db); err != nil {
			return err
		}
	}
	for _, set := range sets() {
		if err := set.Up(ctx, db); err != nil {
			return err
		}
	}
	if err := s.holdTargets(ctx, s.introduce); err != nil {
		return err
	}
	for _, context := range s.keeping() {
		if err := outboxdb.New(db, s.provider.Reader()).KeepHistory(ctx, context, func(string) {}); err != nil {
			return err
		}
	}
	return nil
}

// keeping are the contexts that keep a history.
func (s schema) keeping() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.history)), func(context string) bool { return !s.history[context] })
}

// start is the check of an engine. A context that is new to the database comes to
// it here: a migration without a configuration doesn't know of any.
func (s schema) start(ctx context.Context) error { return s.check(ctx, s.introduce) }

// introduce writes down what the database has to know of a context.
func (s schema) introduce(ctx context.Context, db bun.IDB, context string, t outbox.Targets) error {
	if err := outboxdb.InitTargets(ctx, db, context, t); err != nil {
		return err
	}
	if s.history[context] { // before anything is saved, where nothing was
		if _, err := outboxdb.New(s.provider.DB(), s.provider.Reader()).BeginHistory(ctx, context); err != nil {
			return err
		}
	}
	if err := outboxdb.WriteRenamed(ctx, db, context, s.renamed[context]); err != nil {
		return err
	}
	return outboxdb.WritePublished(ctx, db, context, s.published[context])
}

// introduced is the check of a program that has no engine.
func (s schema) introduced(ctx context.Context, db bun.IDB, context string, t outbox.Targets) error {
	have, err := outboxdb.ConfirmTargets(ctx, db, context, t)
	if err == nil && s.history[context] && have.History == "" {
		err = fmt.Errorf("context %s keeps no history yet, and what its programs save until it does isn't in it: run engine.Migrate with uow.Config.History, or start its engine with it", context)
	}
	return err
}

// holdTargets is schema.introduced or schema.introduce.
type holdTargets func(ctx context.Context, db bun.IDB, context string, t outbox.Targets) error

func (s schema) holdTargets(ctx context.Context, hold holdTargets) error {
	var errs []error
	for _, context := range slices.Sorted(maps.Keys(s.targets)) {
		errs = append(errs, hold(ctx, s.provider.DB(), context, s.targets[context]))
	}
	return errors.Join(errs...)
}

func (s schema) check(ctx context.Context, hold holdTargets) error {
	db := s.provider.Reader()
	if err := migrate.Unshadowed(ctx, db, append(sets(), outboxdb.Migrations(), timerdb.Migrations())...); err != nil {
		return err
	}
	if s.outbox {
		if err := outboxdb.Migrations().Check(ctx, db); err != nil {
			return err
		}
		n, err := outboxdb.Partitions(ctx, db)
		if err != nil {
			return err
		}
		if s.partitions != 0 && n != s.partitions {
			return &outbox.PartitionsError{Have: n, Want: s.partitions}
		}
		if err := timerdb.Migrations().Check(ctx, db); err != nil {
			return err
		}
	}
	for _, set := range sets() {
		if err := set.Check(ctx, db); err != nil {
			return err
		}
	}
	return s.holdTargets(ctx, hold)
}
