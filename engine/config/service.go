package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/secret"
	"github.com/waybill-go/waybill/uow"
)

// Service is what a file describes, opened.
type Service struct {
	// Units are the named domain's, with its external brokers.
	Units *uow.Manager
	// Engine has Units, and everything else that the file says. Add
	// subscriptions, and further contexts from [Service.UnitsFor], and hand it to
	// engine.New.
	Engine engine.Config

	file      *File
	providers []uow.Provider
	opened    []broker.Broker
}

// Open opens the databases and the brokers for the file's domain, which d must
// be. After an error nothing is open.
func (f *File) Open(ctx context.Context, d *domain.Domain, k Kinds) (*Service, error) {
	return f.open(ctx, d, k, true)
}

// OpenDatabases is Open without the brokers, for programs that only write, look
// or migrate. The service's Engine has none and can't run.
func (f *File) OpenDatabases(ctx context.Context, d *domain.Domain, k Kinds) (*Service, error) {
	return f.open(ctx, d, k, false)
}

func (f *File) open(ctx context.Context, d *domain.Domain, k Kinds, withBrokers bool) (*Service, error) {
	errs := []error{f.checkProviders(k)}
	switch {
	case f.Domain == "":
		errs = append(errs, f.vars.emptied("domain", fmt.Errorf("%s: domain is missing: write `domain: %s`", f.name, d.Name())))
	case f.Domain != d.Name():
		errs = append(errs, fmt.Errorf("%s: domain is %q, and this program is of %q: give it its own file, or write `domain: %s`", f.name, f.Domain, d.Name(), d.Name()))
	}
	if withBrokers {
		errs = append(errs, f.checkBrokers(k))
	}
	if f.Domain == d.Name() {
		for _, t := range f.External {
			errs = append(errs, t.Check(d))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}

	s := &Service{file: f}
	var brokers map[string]broker.Broker
	var open sync.WaitGroup // together: an unreachable server costs its time once
	var brokerErr error
	if withBrokers {
		open.Go(func() { brokers, s.opened, brokerErr = f.openBrokers(ctx, k) })
	}
	providers, err := f.OpenProviders(ctx, k)
	s.providers = providers
	open.Wait()
	if err := errors.Join(err, brokerErr); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	s.Units, err = uow.New(uow.Config{
		Domain: d, Providers: providers, Broker: f.Broker, External: f.External, History: f.History,
		Partitions: f.Partitions, MaxMessageBytes: f.MaxMessageBytes, Lease: f.Outbox.WithDefaults().Lease,
	})
	if err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	if withBrokers { // else the brokers' keys weren't asked for
		f.warnOfVariables(k.Logger)
	}
	s.Engine = engine.Config{Units: []*uow.Manager{s.Units}, Brokers: brokers, Outbox: f.Outbox, DeadLetters: f.DeadLetters, Server: f.Server, Logger: k.Logger}
	return s, nil
}

// UnitsFor returns the units of work of a further context in the same
// databases. It publishes to the internal broker only, and keeps no history: external_brokers
// and history are the named domain's.
func (s *Service) UnitsFor(d *domain.Domain) (*uow.Manager, error) {
	return uow.New(uow.Config{
		Domain: d, Providers: s.providers, Broker: s.file.Broker,
		Partitions: s.file.Partitions, MaxMessageBytes: s.file.MaxMessageBytes, Lease: s.file.Outbox.WithDefaults().Lease,
	})
}

// Close closes what was opened. Call it after the engine has stopped.
func (s *Service) Close(ctx context.Context) error {
	var errs []error
	for _, b := range s.opened {
		errs = append(errs, b.Close(ctx))
	}
	return errors.Join(append(errs, closeAll(s.providers))...)
}

// OpenProviders opens the databases alone, the default one first. Whoever calls
// it closes them.
func (f *File) OpenProviders(ctx context.Context, k Kinds) ([]uow.Provider, error) {
	if err := f.checkProviders(k); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	secrets := byName(f.providers, func(p provider) (string, settings) { return p.name, p.settings })
	providers, err := each(f.providers, func(p provider) (uow.Provider, error) {
		opened, err := k.Providers[p.dialect](ctx, p.name, p.settings)
		if err != nil {
			return nil, f.vars.emptied("providers."+p.name, fmt.Errorf("config: providers.%s: %w", p.name, secret.ErrorOf(err, secrets[p.name])))
		}
		return opened, nil
	})
	if err != nil {
		return nil, errors.Join(err, closeAll(providers))
	}
	return providers, nil
}

func closeAll(providers []uow.Provider) error {
	var errs []error
	for _, p := range providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// openBrokers returns the brokers by name, and those that have to be closed.
func (f *File) openBrokers(ctx context.Context, k Kinds) (map[string]broker.Broker, []broker.Broker, error) {
	own := slices.DeleteFunc(slices.Clone(f.brokers), func(b brokerEntry) bool { return b.shares != "" })
	secrets := byName(f.brokers, func(b brokerEntry) (string, settings) { return b.name, b.settings })
	opened, err := each(own, func(b brokerEntry) (broker.Broker, error) {
		b.settings.logger = k.Logger
		opened, err := k.Brokers[b.kind](ctx, b.settings)
		if err != nil {
			return nil, f.vars.emptied("brokers."+b.name, fmt.Errorf("config: brokers.%s: %w", b.name, secret.ErrorOf(err, secrets[b.name])))
		}
		return opened, nil
	})
	if err != nil {
		return nil, opened, err
	}
	shared := map[string]broker.Broker{}
	for i, b := range own {
		shared[b.name] = opened[i]
	}
	brokers := map[string]broker.Broker{}
	for _, b := range f.brokers {
		brokers[b.name] = broker.Prefixed(shared[cmp.Or(b.shares, b.name)], b.prefix)
	}
	return brokers, opened, nil
}

// byName are the effective settings of entries.
func byName[E any](entries []E, of func(E) (string, settings)) map[string]map[string]string {
	named := map[string]map[string]string{}
	for i, flat := range flatten(entries, func(e E) settings { _, s := of(e); return s }) {
		name, _ := of(entries[i])
		named[name] = flat
	}
	return named
}

// each opens all entries at the same time. After errors it returns those that
// did open, too.
func each[E, T any](entries []E, open func(E) (T, error)) ([]T, error) {
	results, errs := make([]T, len(entries)), make([]error, len(entries))
	var all sync.WaitGroup
	for i, e := range entries {
		all.Go(func() { results[i], errs[i] = open(e) })
	}
	all.Wait()
	var opened []T
	for i := range results {
		if errs[i] == nil {
			opened = append(opened, results[i])
		}
	}
	return opened, errors.Join(errs...)
}

func (f *File) checkProviders(k Kinds) error {
	var errs []error
	for _, p := range f.providers {
		if _, ok := k.Providers[p.dialect]; !ok {
			errs = append(errs, fmt.Errorf("providers.%s.dialect is %q; %s", p.name, p.dialect, nearest(p.dialect, slices.Collect(maps.Keys(k.Providers)))))
		}
	}
	return errors.Join(errs...)
}

// adapters are the kinds of brokers that there are, and what a program has to name.
var adapters = map[string]string{
	"kafka":           "kafka.FromSettings of github.com/waybill-go/waybill/broker/kafka",
	"nats":            "nats.FromSettings of github.com/waybill-go/waybill/broker/nats",
	"watermill-kafka": "kafka.FromSettings of github.com/waybill-go/waybill/broker/watermill/kafka, a module of its own",
}

// unlinked says what to do about a kind that the program doesn't have.
func unlinked(kind string, known []string) string {
	if opener, ok := adapters[kind]; ok {
		return fmt.Sprintf("this program doesn't have it: give it config.Kinds.Brokers[%q], which is %s", kind, opener)
	}
	return nearest(kind, known)
}

func (f *File) checkBrokers(k Kinds) error {
	var errs []error
	if len(f.brokers) == 0 {
		errs = append(errs, errors.New("brokers is missing: name one, as in `default: {kind: nats, embedded: ./data}`"))
	}
	for _, b := range f.brokers {
		if _, ok := k.Brokers[b.kind]; !ok {
			errs = append(errs, fmt.Errorf("brokers.%s.kind is %q; %s", b.name, b.kind, unlinked(b.kind, slices.Collect(maps.Keys(k.Brokers)))))
		}
	}
	return errors.Join(errs...)
}
