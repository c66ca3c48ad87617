package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// timersFilter is what chooses timers.
type timersFilter struct {
	Provider    string   `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	ID          []string `name:"id" placeholder:"ID" help:"Only these timers. May be repeated."`
	Owner       string   `help:"Only of this owner, as listed."`
	Name        string   `help:"Only of this name."`
	Type        typeName `placeholder:"TYPE" help:"Only with a message of this type, as in Library.MarkOverdue.v1."`
	Status      string   `enum:",waiting,sent,broken" default:"" placeholder:"STATUS" help:"Only in this status: waiting, sent (its message is in the outbox or under way), or broken (its message can't be sent)."`
	Tenant      string   `help:"Only of this tenant."`
	Correlation string   `placeholder:"ID" help:"Only of this correlation."`
	From        moment   `placeholder:"TIME" help:"Only due at this time or later: 2026-01-02T15:04:05Z, or 2h for two hours ago."`
	Until       moment   `placeholder:"TIME" help:"Only due before this time."`
}

func (f timersFilter) filter() outbox.TimerFilter {
	return outbox.TimerFilter{
		IDs: f.ID, Owner: f.Owner, Name: f.Name, Type: string(f.Type), Status: f.Status, Tenant: f.Tenant, Correlation: f.Correlation,
		From: f.From.Time, Until: f.Until.Time,
	}
}

// eachTimers calls do for the timers of every database that is named, or of one
// provider.
func (c *cli) eachTimers(ctx context.Context, only string, do func(provider string, s *timerdb.Store) error) error {
	return c.eachProvider(ctx, only, func(_ *databases, p uow.Provider) error {
		if err := timerdb.Migrations().Check(ctx, p.Reader()); err != nil {
			return err
		}
		return do(p.Name(), timerdb.New(p.DB(), p.Reader()))
	})
}

type listTimersCmd struct {
	timersFilter
	Limit int    `default:"50" help:"How many at a time."`
	After string `placeholder:"PLACE" help:"Continue after this one; the previous page prints it."`
}

func (l listTimersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
	all := map[string]outbox.TimerPage{}
	err := c.eachTimers(ctx, l.Provider, func(provider string, s *timerdb.Store) (err error) {
		f := l.filter()
		f.After, f.Limit = l.After, l.Limit
		all[provider], err = s.Find(ctx, f)
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "ID", "OWNER", "NAME", "TYPE", "STATUS", "DUE", "SET", "SENT")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, d := range all[provider].Timers {
			sent := ""
			if d.SentAt != nil {
				sent = when(*d.SentAt)
			}
			t.row(provider, d.ID, oneLine(d.Owner), oneLine(d.Name), d.Type, d.Status, when(d.AvailableAt), when(d.SetAt), sent)
		}
	}
	err = t.flush(err, "No timers match.")
	goOn(stderr, all, func(p outbox.TimerPage) (said string, after any, more bool) {
		return "There is more", p.Next, p.Next != ""
	})
	return err
}

type showTimerCmd struct {
	ID string `arg:"" help:"The timer's id, as listed."`
}

// shownTimer is a timer with its payload also as text, if it is that.
type shownTimer struct {
	Provider string `json:"provider"`
	*outbox.TimerDetails
	Text *string `json:"text"`
}

func (s showTimerCmd) Run(ctx context.Context, c *cli, stdout out) error {
	var found *shownTimer
	err := c.eachTimers(ctx, "", func(provider string, store *timerdb.Store) error {
		d, err := store.Show(ctx, s.ID)
		if err == nil {
			found = &shownTimer{Provider: provider, TimerDetails: d}
		}
		if errors.Is(err, timerdb.ErrNoTimer) {
			return nil
		}
		return err
	})
	switch {
	case found == nil && err == nil:
		return fmt.Errorf("there is no timer %s: it was handled, stopped or set again; `waybill timers list` shows the ones that exist", s.ID)
	case found == nil:
		return err
	}
	if isText(found.Payload) {
		text := string(found.Payload)
		found.Text = &text
	}
	if c.JSON {
		return writeJSON(stdout, found)
	}
	found.print(stdout)
	return nil
}

func (s *shownTimer) print(w out) {
	field := fields(w, 14)
	field("Timer", "%s, provider %s", s.ID, s.Provider)
	field("Owner, name", "%s, %s", s.Owner, s.Name)
	field("Status", "%s", s.status())
	field("Set", "%s (%s ago)", when(s.SetAt), since(s.SetAt))
	field("Message", "%s, for %s", s.Type, s.Message.TargetBroker)
	field("Key", "%s", s.Message.PartitionKey)
	field("Correlation", "%s", cmp.Or(s.CorrelationID, "none"))
	field("Causation", "%s", cmp.Or(s.Message.CausationID, "none"))
	field("Tenant", "%s", cmp.Or(s.TenantID, "none"))
	printBody(w, field, "Payload", ", "+cmp.Or(s.Message.ContentType, "of no known type"), s.Payload)
	fmt.Fprintf(w, "\nwaybill timers stop --id %s   stops it for good\n", s.ID)
	if s.Status != outbox.TimerSent {
		fmt.Fprintf(w, "waybill timers fire --id %s   makes it due at once\n", s.ID)
	}
}

func (s *shownTimer) status() string {
	if s.SentAt != nil {
		return fmt.Sprintf("sent %s: `waybill outbox show %s` says where its message is, `waybill dead-letters list` whether it failed", when(*s.SentAt), s.ID)
	}
	if s.Status == outbox.TimerBroken {
		return fmt.Sprintf("broken, due %s; set aside, as it can't be sent: %s", when(s.AvailableAt), oneLine(s.Error))
	}
	if s.AvailableAt.After(time.Now()) {
		return "waiting, due " + when(s.AvailableAt)
	}
	return fmt.Sprintf("waiting, due %s (%s ago): an engine of its database sends it", when(s.AvailableAt), since(s.AvailableAt))
}
