package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/rights"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

type migrateCmd struct {
	SetTargets map[string]string `placeholder:"CONTEXT=BROKER,…" help:"Change which brokers a context sends to: its own, then the external ones. Stop all its processes first."`
	Provider   string            `placeholder:"NAME" help:"Only this database of the configuration file."`
	DryRun     bool              `xor:"how" help:"Change nothing; show which migrations would run on which database."`
	Print      bool              `xor:"how" help:"Change nothing; print what would run as SQL for psql or sqlite3, for one database. Once that SQL has run, 'migrate' has nothing left to do."`
	Role       []string          `sep:"none" placeholder:"app|engine|read=NAME" help:"Grant a PostgreSQL role its rights on tables it doesn't own: app saves and consumes, engine also publishes, read only reads. With --print, as SQL. Without =NAME, the role is waybill_app, waybill_engine or waybill_read. May be repeated."`
	History    string            `enum:",copy,none" default:"" placeholder:"copy|none" help:"Which earlier events the brokers added by --set-targets get: none, or copies of all that are still stored. With copy, they are joining until 'outbox backfill' has finished."`
	onRecord
}

const (
	copyHistory = "copy"
	noHistory   = "none"
)

// migrated is what is told of one provider. What ran is what wasn't there before: another process may have run it meanwhile.
type migrated struct {
	Ran        []migrate.Step            `json:"migrations"`
	Partitions int                       `json:"partitions"`
	Targets    map[string]outbox.Targets `json:"targets"` // by context
}

func (m migrateCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	open := func(ctx context.Context) (*databases, error) { return c.open(ctx, m.Provider, true) }
	if m.DryRun || m.Print {
		open = func(ctx context.Context) (*databases, error) { return c.look(ctx, m.Provider) }
	}
	d, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	providers := d.providers
	if m.Provider != "" {
		providers = slices.DeleteFunc(slices.Clone(providers), func(p uow.Provider) bool { return p.Name() != m.Provider })
		if len(providers) == 0 {
			return &usageError{fmt.Errorf("there is no provider %s", m.Provider)}
		}
	}
	if m.DryRun && len(m.Role) > 0 {
		return &usageError{errors.New("--dry-run says nothing of rights: take --print, which writes the grants")}
	}
	to, err := m.grantees(providers)
	if err != nil {
		return err
	}
	if m.DryRun || m.Print {
		return m.plan(ctx, c, d, providers, to, stdout)
	}
	signal.Ignore(syscall.SIGPIPE) // As in act.
	if m.History != "" && len(m.SetTargets) == 0 {
		return &usageError{errors.New("--history is about brokers that --set-targets adds: give both")}
	}
	if err := m.check(len(m.SetTargets) == 0); err != nil {
		return err
	}
	targets := map[string]outbox.Targets{}
	for context, brokers := range m.SetTargets {
		all := strings.Split(brokers, ",")
		targets[context] = outbox.Targets{Broker: all[0], External: all[1:]}
		if context == d.context && !targets[context].Equal(d.sends) {
			return &usageError{fmt.Errorf("--set-targets says that %s sends to %s, and the configuration file says %v: make them equal", context, brokers, d.sends)}
		}
	}
	done := map[string]migrated{}
	var errs []error
	for _, p := range providers {
		now, err := m.migrate(ctx, d, p, targets, to)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			continue
		}
		done[p.Name()] = now
		if !c.JSON {
			now.tell(p.Name(), to, stdout)
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": done}))
	}
	return errors.Join(errs...)
}

// tell names the features that had no tables, and each file that ran on those that had.
func (m migrated) tell(provider string, to []rights.Grantee, stdout out) {
	how, made := "is up to date", []string{}
	for _, s := range m.Ran {
		if how = "was migrated"; s.Version == 1 {
			made = append(made, s.Feature)
		}
	}
	fmt.Fprintf(stdout, "Provider %s %s: %d partitions.\n", provider, how, m.Partitions)
	if len(made) > 0 {
		fmt.Fprintf(stdout, "  New tables: %s.\n", strings.Join(made, ", "))
	}
	for _, s := range m.Ran {
		if !slices.Contains(made, s.Feature) {
			fmt.Fprintf(stdout, "  Changed tables: %s %s.\n", s.Feature, s.Name)
		}
	}
	for _, g := range to {
		fmt.Fprintf(stdout, "  Role %s has what %s needs.\n", g.Name, g.Role)
	}
	for _, context := range slices.Sorted(maps.Keys(m.Targets)) {
		fmt.Fprintf(stdout, "  %s sends to %v.\n", context, m.Targets[context])
		for _, j := range m.Targets[context].Joining {
			fmt.Fprintf(stdout, "  %s is joining: `waybill outbox backfill` copies earlier events and makes it live.\n", j)
		}
	}
}

// plan says what a migration would do, or how to do it by hand.
func (m migrateCmd) plan(ctx context.Context, c *cli, d *databases, providers []uow.Provider, to []rights.Grantee, stdout out) error {
	switch {
	case len(m.SetTargets) > 0:
		return &usageError{errors.New("--set-targets is done at once, or not at all: leave out --dry-run and --print")}
	case m.Print && c.JSON:
		return &usageError{errors.New("--print writes SQL: leave out --json, or take --dry-run")}
	case m.Print && len(providers) > 1:
		return &usageError{errors.New("the configuration file has several databases, and a script is for one: add --provider")}
	}
	contexts := map[string]outbox.Targets{}
	if d.context != "" {
		contexts[d.context] = d.sends
	}
	plans := map[string]migrate.Plan{}
	var errs []error
	for _, p := range providers {
		plan, err := engine.PlanMigration(ctx, p, d.partitions, contexts)
		if err == nil && m.Print {
			err = script(ctx, p, plan, to, stdout)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			continue
		}
		plans[p.Name()] = plan
		if !c.JSON && !m.Print {
			tellMigration(p.Name(), plan, stdout)
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": plans}))
	}
	return errors.Join(errs...)
}

func tellMigration(provider string, plan migrate.Plan, stdout out) {
	if plan.Empty() {
		fmt.Fprintf(stdout, "Provider %s is up to date.\n", provider)
		return
	}
	fmt.Fprintf(stdout, "Provider %s is not up to date. `waybill migrate` would run:\n", provider)
	for _, s := range plan.Steps {
		fmt.Fprintf(stdout, "  %s %s\n", s.Feature, s.Name)
	}
	for _, statement := range plan.Then {
		fmt.Fprintf(stdout, "  %s\n", statement)
	}
}

// script is all comments if there is nothing to do.
func script(ctx context.Context, p uow.Provider, plan migrate.Plan, to []rights.Grantee, stdout out) error {
	sql, grants := "", ""
	var err error
	if !plan.Empty() {
		if sql, err = plan.Script(ctx, p.Reader()); err != nil {
			return err
		}
	}
	if len(to) > 0 {
		if grants, err = rights.Script(ctx, p.Reader(), to); err != nil {
			return err
		}
	}
	how := "sqlite3 -bail FILE < SCRIPT"
	if postgresql(p) {
		how = "psql -v ON_ERROR_STOP=1 -f SCRIPT, as the role that is to own the tables"
	}
	switch {
	case !plan.Empty():
		fmt.Fprintf(stdout, "-- Provider %s. Run it whole: %s.\n%s", p.Name(), how, sql)
	case grants != "":
		fmt.Fprintf(stdout, "-- Provider %s is up to date. Run it whole: %s.\n", p.Name(), how)
	default:
		fmt.Fprintf(stdout, "-- Provider %s is up to date.\n", p.Name())
	}
	fmt.Fprint(stdout, grants)
	return nil
}

func postgresql(p uow.Provider) bool { return p.DB().Dialect().Name() == dialect.PG }

// grantees are those of --role.
func (m migrateCmd) grantees(providers []uow.Provider) ([]rights.Grantee, error) {
	to, err := granteesOf(m.Role)
	if err != nil || len(to) == 0 {
		return nil, err
	}
	for _, p := range providers {
		if !postgresql(p) {
			return nil, &usageError{fmt.Errorf("--role: provider %s is a SQLite file, and SQLite has no roles: who may read and write the file may do all; name a provider on PostgreSQL with --provider, or leave --role out", p.Name())}
		}
	}
	return to, nil
}

// granteesOf reads what --role says.
func granteesOf(roles []string) (to []rights.Grantee, err error) {
	for _, text := range roles {
		g, err := rights.Parse(text)
		if err != nil {
			return nil, &usageError{err}
		}
		to = append(to, g)
	}
	return to, nil
}

func (m migrateCmd) migrate(ctx context.Context, d *databases, p uow.Provider, targets map[string]outbox.Targets, to []rights.Grantee) (now migrated, err error) {
	plan, err := engine.PlanMigration(ctx, p, d.partitions, nil)
	if err != nil {
		return now, err
	}
	now.Ran = append([]migrate.Step{}, plan.Steps...)
	if err := engine.MigrateProvider(ctx, p, d.partitions); err != nil {
		return now, err
	}
	if err := rights.Give(ctx, p.DB(), to, rights.Features()); err != nil {
		return now, err
	}
	for context, t := range targets {
		if t.Joining, err = m.joining(ctx, p, context, t); err != nil {
			return now, err
		}
		if err := engine.SetTargets(ctx, p, context, t, m.actor()); err != nil {
			return now, err
		}
	}
	if d.context != "" {
		if err := outboxdb.InitTargets(ctx, p.DB(), d.context, d.sends); err != nil {
			return now, err
		}
	}
	if now.Partitions, err = outboxdb.Partitions(ctx, p.Reader()); err != nil {
		return now, err
	}
	now.Targets, err = outboxdb.ReadTargets(ctx, p.Reader())
	return now, err
}

// joining are the brokers of t that come with the history. Where there is one,
// somebody has to decide.
func (m migrateCmd) joining(ctx context.Context, p uow.Provider, context string, t outbox.Targets) ([]string, error) {
	all, err := outboxdb.ReadTargets(ctx, p.Reader())
	if err != nil {
		return nil, nil //nolint:nilerr // what can't be read is about to be written anew
	}
	added := slices.DeleteFunc(slices.Clone(t.External), func(e string) bool { return slices.Contains(all[context].External, e) })
	switch {
	case len(added) == 0 || m.History == noHistory:
		return nil, nil
	case m.History == copyHistory:
		return added, nil
	}
	var events bool
	err = p.Reader().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM outbox WHERE stream_category LIKE ?)", context+"::%").Scan(&events)
	if err == nil && events {
		err = &usageError{fmt.Errorf("there are events of %s which %s would not get: add --history copy, and `waybill outbox backfill` copies them before it gets those to come; or --history none", context, strings.Join(added, ", "))}
	}
	return nil, err
}
