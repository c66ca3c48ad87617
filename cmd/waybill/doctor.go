package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

type doctorCmd struct {
	Provider string   `placeholder:"NAME" help:"Only this database of the configuration file."`
	Role     []string `sep:"none" placeholder:"app|engine|read=NAME" help:"Check whether this PostgreSQL role has the rights of an application, an engine or a reader. May be repeated. Defaults to the role that connects, for the kind it appears to be."`

	Kafka     bool     `help:"Check Kafka instead: print the rights that the contexts need there, as kafka-acls commands, and report problems with their topics."`
	NATS      bool     `name:"nats" help:"Check NATS instead: report problems with the streams and groups that the contexts have there."`
	User      string   `placeholder:"PRINCIPAL" help:"With --kafka: the principal that gets the rights. Defaults to the sasl user, or User:waybill."`
	Publishes []string `sep:"none" placeholder:"CONTEXT" help:"With --kafka or --nats: a further context beside the file's domain that publishes. May be repeated."`
	Reads     []string `sep:"none" placeholder:"CATEGORY" help:"With --kafka or --nats: a category that is consumed, such as ordering::order. May be repeated."`
}

// examined is the answer.
type examined struct {
	Severity  doctor.Severity             `json:"severity"`
	Providers map[string][]doctor.Finding `json:"providers"`
}

// fits refuses flags that the check takes no notice of, and names that no topic can have: who gives
// them takes the answer for one about them.
func (d doctorCmd) fits() error {
	switch {
	case d.Kafka && d.NATS:
		return errors.New("--kafka and --nats are two checks: give one of them")
	case d.User != "" && !d.Kafka:
		return errors.New("--user is about rights in Kafka: give --kafka, too")
	case len(d.Publishes)+len(d.Reads) > 0 && !d.Kafka && !d.NATS:
		return errors.New("--publishes and --reads are about a broker: give --kafka or --nats, too")
	case len(d.Role) > 0 && (d.Kafka || d.NATS), d.Provider != "" && (d.Kafka || d.NATS):
		return errors.New("--role and --provider are about databases: leave them out with --kafka and --nats")
	}
	for _, name := range slices.Concat(d.Publishes, d.Reads) {
		if !topical.MatchString(outbox.DefaultTopic(name)) {
			return fmt.Errorf("%q can't be in a topic's name: give --publishes a context, as in ordering, and --reads a category, as in ordering::order", name)
		}
	}
	return nil
}

// topical is what a broker takes as a topic.
var topical = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func (d doctorCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	if err := d.fits(); err != nil {
		return &usageError{err}
	}
	switch {
	case d.Kafka:
		return d.kafka(ctx, c, stdout)
	case d.NATS:
		return d.nats(ctx, c, stdout)
	}
	roles, err := granteesOf(d.Role)
	if err != nil {
		return err
	}
	all, err := c.openForDoctor(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	report := examined{Severity: doctor.OK, Providers: map[string][]doctor.Finding{}}
	n := map[doctor.Severity]int{}
	outboxes := all.outboxes(ctx)
	for _, p := range all.providers {
		if d.Provider != "" && p.Name() != d.Provider {
			continue
		}
		var found []doctor.Finding
		if err := away(p); err != nil {
			found = []doctor.Finding{{
				Check: "connection", Severity: doctor.Critical, What: "it can't be opened: " + err.Error(),
				Remedy: cannotOpen(err),
			}}
		} else {
			found = append(doctor.Examine(ctx, p, outboxes, roles...), all.compareTargets(ctx, p)...)
		}
		if ctx.Err() != nil {
			return ctx.Err() // half an examination says nothing
		}
		report.Providers[p.Name()] = found
		for _, f := range found {
			n[f.Severity]++
		}
		if !c.JSON {
			tellFindings("Provider "+p.Name(), found, stdout)
		}
	}
	switch {
	case len(report.Providers) == 0:
		return &usageError{fmt.Errorf("there is no provider %s", d.Provider)}
	case n[doctor.Critical] > 0:
		report.Severity = doctor.Critical
		err = fmt.Errorf("%d critical and %d other findings", n[doctor.Critical], n[doctor.Warning])
	case n[doctor.Warning] > 0:
		report.Severity = doctor.Warning
	}
	if c.JSON {
		err = errors.Join(err, writeJSON(stdout, report))
	}
	return err
}

// cannotOpen is what helps against an error of opening a database.
func cannotOpen(err error) string {
	switch code := dberr.CodeOf(err); {
	case code == "53300":
		return "it runs, and has no connection left: see pg_stat_activity for who has them, and end what nobody needs, or raise the limit that the error names"
	case strings.HasPrefix(code, "sqlite "):
		return "do what the error says, or correct the path in the configuration"
	}
	return "start it, or correct its settings in the configuration"
}

// outboxes are the names of those of all databases; none, if one can't be asked.
func (d *databases) outboxes(ctx context.Context) (names []string) {
	for _, p := range d.providers {
		if away(p) != nil {
			return nil
		}
		name, err := outboxdb.Name(ctx, p.Reader())
		if err != nil {
			return nil
		}
		names = append(names, name)
	}
	return names
}

// compareTargets tells that a database has another list of brokers for the file's context than
// the file.
func (d *databases) compareTargets(ctx context.Context, p uow.Provider) []doctor.Finding {
	if d.context == "" {
		return nil
	}
	misfit, ok := errors.AsType[*outbox.TargetsError](outboxdb.CheckTargets(ctx, p.Reader(), d.context, d.sends))
	if !ok || misfit.Have == nil {
		return nil
	}
	return []doctor.Finding{{
		Check: "targets", Severity: doctor.Critical, Where: "context " + d.context,
		What:   fmt.Sprintf("in the database it sends to %v, in this file to %v: programs with this file don't start, and those that run can't save events", misfit.Have, misfit.Want),
		Remedy: fmt.Sprintf("configure %v, or stop all its processes and run: waybill migrate --set-targets %s=%v", misfit.Have, d.context, misfit.Want),
	}}
}

// openForDoctor opens what can be opened, and makes nothing.
func (c *cli) openForDoctor(ctx context.Context) (*databases, error) {
	kinds := lookers(func(_, path string) (uow.Provider, error) {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	})
	return c.openBy(ctx, opening(kinds, orUnopened), func(dsn string) (uow.Provider, error) {
		p, err := openDSN(ctx, dsn, false)
		if _, ok := errors.AsType[*usageError](err); ok {
			return nil, err
		}
		return orUnopened("default", p, err)
	})
}

func orUnopened(name string, p uow.Provider, err error) (uow.Provider, error) {
	if err == nil {
		return p, nil
	}
	return &unopened{name: name, err: err}, nil
}

// tellFindings shows what is wrong first, each with its remedy.
func tellFindings(part string, found []doctor.Finding, stdout out) {
	fmt.Fprintln(stdout, part)
	for _, severity := range []doctor.Severity{doctor.Critical, doctor.Warning, doctor.OK} {
		for _, f := range found {
			if f.Severity != severity {
				continue
			}
			where := f.Check
			if f.Where != "" {
				where += ", " + plainLine(f.Where)
			}
			fmt.Fprintf(stdout, "  %-8s  %s: %s.\n", f.Severity, where, strings.TrimSuffix(plainLine(f.What), "."))
			if f.Remedy != "" {
				fmt.Fprintf(stdout, "            Remedy: %s\n", plainLine(f.Remedy))
			}
		}
	}
}

// plainLine is fit for one line of a terminal, whatever a database answered.
func plainLine(text string) string { return strings.Join(strings.Fields(printable(text)), " ") }
