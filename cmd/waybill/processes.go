package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/uow"
)

// processesFilter is what chooses processes.
type processesFilter struct {
	Provider string      `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	Process  processName `placeholder:"NAME" help:"Only of this kind, by context and name, as in library.lending."`
	ID       []string    `name:"id" placeholder:"ID" help:"Only with this identity. May be repeated."`
	Status   string      `enum:",running,awaited,ended" default:"" placeholder:"STATUS" help:"Only in this status: running, ended, or awaited (messages arrived before the one that starts it)."`
	From     moment      `placeholder:"TIME" help:"Only begun at this time or later: 2026-01-02T15:04:05Z, or 2h for two hours ago."`
	Until    moment      `placeholder:"TIME" help:"Only begun before this time."`
	Idle     bool        `help:"Only running processes without a message for 30 days and without a timer."`
}

func (f processesFilter) filter() processdb.Filter {
	return processdb.Filter{Process: string(f.Process), IDs: f.ID, Status: f.Status, From: f.From.Time, Until: f.Until.Time, Idle: f.Idle}
}

// eachProcesses calls do for the processes of every database that is named, or of one
// provider.
func (c *cli) eachProcesses(ctx context.Context, only string, do func(p uow.Provider, s *processdb.Store) error) error {
	return c.eachProvider(ctx, only, func(_ *databases, p uow.Provider) error {
		s := processdb.New(p)
		if err := s.Check(ctx); err != nil {
			return err
		}
		return do(p, s)
	})
}

type listProcessesCmd struct {
	processesFilter
	Limit int    `default:"50" help:"How many at a time."`
	After string `placeholder:"PLACE" help:"Continue after this one; the previous page prints it."`
}

func (l listProcessesCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
	all := map[string]processdb.Page{}
	err := c.eachProcesses(ctx, l.Provider, func(p uow.Provider, s *processdb.Store) (err error) {
		f := l.filter()
		f.After, f.Limit = l.After, l.Limit
		all[p.Name()], err = s.Find(ctx, f)
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "PROCESS", "ID", "STATUS", "HEARD", "BEGAN", "LAST HEARD", "ENDED")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, p := range all[provider].Processes {
			ended := ""
			if p.EndedAt != nil {
				ended = when(*p.EndedAt)
			}
			t.row(provider, p.Process, oneLine(p.ID), p.Status, fmt.Sprint(p.Version), fmt.Sprintf("%s (%s ago)", when(p.BeganAt), since(p.BeganAt)), when(p.LastAt), ended)
		}
	}
	err = t.flush(err, "No processes match.")
	goOn(stderr, all, func(p processdb.Page) (said string, after any, more bool) {
		return "There is more", quote(p.Next), p.Next != ""
	})
	return err
}

type processesStatsCmd struct {
	Provider string `placeholder:"NAME" help:"Only of this provider of the configuration file."`
}

func (l processesStatsCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string]map[string]processdb.Stats{}
	err := c.eachProcesses(ctx, l.Provider, func(p uow.Provider, s *processdb.Store) (err error) {
		all[p.Name()], err = s.Stats(ctx)
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "PROCESS", "RUNNING", "AWAITED", "ENDED", "IDLE", "OLDEST RUNNING")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, name := range slices.Sorted(maps.Keys(all[provider])) {
			s, age := all[provider][name], ""
			if s.OldestSeconds != nil {
				age = (time.Duration(*s.OldestSeconds) * time.Second).String()
			}
			t.row(provider, name, fmt.Sprint(s.Running), fmt.Sprint(s.Awaited), fmt.Sprint(s.Ended), fmt.Sprint(s.Idle), age)
		}
	}
	return t.flush(err, "There are no processes.")
}

type showProcessCmd struct {
	Process string `arg:"" help:"Its kind, as listed: library.lending."`
	ID      string `arg:"" help:"Its id, as listed."`
}

// shownProcess is a process in its database.
type shownProcess struct {
	Provider string `json:"provider"`
	*processdb.Details
}

func (s showProcessCmd) Run(ctx context.Context, c *cli, stdout out) error {
	found, err := c.findProcess(ctx, s.Process, s.ID)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(stdout, found)
	}
	found.print(stdout)
	return nil
}

func (c *cli) findProcess(ctx context.Context, name, id string) (found *shownProcess, err error) {
	err = c.eachProcesses(ctx, "", func(p uow.Provider, s *processdb.Store) error {
		d, err := s.Show(ctx, name, id)
		if err == nil {
			found = &shownProcess{p.Name(), d}
		}
		if errors.Is(err, processdb.ErrNone) {
			return nil
		}
		return err
	})
	if found == nil && err == nil {
		err = fmt.Errorf("there is no process %s %q: it hasn't begun, or ended so long ago that it was forgotten; `waybill processes list` has those that there are", name, id)
	}
	if found != nil {
		err = nil // Whatever other databases say.
	}
	return found, err
}

func (s *shownProcess) print(w out) {
	field := fields(w, 14)
	list := func(title string, n int, line func(i int) string) {
		for i := range n {
			field(title, "%s", line(i))
			title = ""
		}
		if n == 0 {
			field(title, "none")
		}
	}
	field("Process", "%s %s, provider %s", s.Process.Process, s.ID, s.Provider)
	field("Status", "%s", s.words())
	field("Began", "%s (%s ago)", when(s.BeganAt), since(s.BeganAt))
	field("Last heard", "%s (%s ago)", when(s.LastAt), since(s.LastAt))
	field("Version", "%d", s.Version)
	list("Heard", len(s.Heard), func(i int) string {
		return fmt.Sprintf("%s  %s  %s", when(s.Heard[i].At), s.Heard[i].Type, s.Heard[i].ID)
	})
	list("Timers", len(s.Timers), func(i int) string {
		return fmt.Sprintf("%s, %s, due %s", s.Timers[i].Name, s.Timers[i].Status, when(s.Timers[i].AvailableAt))
	})
	list("Dead letters", len(s.Letters), func(i int) string {
		l := s.Letters[i]
		return fmt.Sprintf("%s, %s (%s), %s: %s", l.ID, l.Status, l.Reason, l.Type, oneLine(l.Error))
	})
	if more := s.LettersTotal - int64(len(s.Letters)); more > 0 {
		field("", "and %d more", more)
	}
	if len(s.State) > 0 {
		printBody(w, field, "State", fmt.Sprintf(", of form %d", s.StateVersion), s.State)
	}
	fmt.Fprintln(w)
	if s.LettersTotal > 0 {
		fmt.Fprintf(w, "waybill dead-letters list --subscription %s --key %s   has its dead letters\n", s.Process.Process, quote(s.ID))
	}
	if s.Process.Status == processdb.Running {
		fmt.Fprintf(w, "waybill processes end --process %s --id %s   ends it, and stops its timers\n", s.Process.Process, quote(s.ID))
		if len(s.Timers) > 0 {
			fmt.Fprintf(w, "waybill processes wake %s %s   has a timer of it ring now\n", s.Process.Process, quote(s.ID))
		}
	}
}

func (s *shownProcess) words() string {
	switch s.Process.Status {
	case processdb.Awaited:
		return "awaited: messages came before what begins it, and wait among the dead letters"
	case processdb.Ended:
		return "ended " + when(*s.EndedAt) + ": what comes for it is ignored"
	}
	return s.Process.Status
}

// quote is an argument for a shell, in one line: for bash, zsh and ksh if it has what would move
// a terminal's cursor, as the id of a process may, which is from a message.
func quote(text string) string {
	switch {
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "$'" + escaped(text) + "'"
	case text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !strings.ContainsRune(plainText, r) }):
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\'' || r == '\\':
			b.WriteString(`\` + string(r))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			for _, c := range []byte(string(r)) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
	}
	return b.String()
}

const plainText = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/@+="
