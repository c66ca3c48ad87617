package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

var (
	statusWords = map[subscription.DeadLetterStatus]string{
		subscription.DeadLetterParked:    "waits for an operator",
		subscription.DeadLetterHeld:      "waits for earlier messages of its key, then continues by itself",
		subscription.DeadLetterWaiting:   "is handled by itself when it is due",
		subscription.DeadLetterEarly:     "waits for its process to begin, and is handled then",
		subscription.DeadLetterReplay:    "is handled again when it is due and the first of its key",
		subscription.DeadLetterReplayed:  "was handled again, and had its effect",
		subscription.DeadLetterDiscarded: "was given up, and never has an effect",
	}
	reasonWords = map[string]string{
		"undecodable":   "not a message of a known form",
		"too_large":     "larger than the subscription takes; its body was not kept",
		"refused":       "more than the subscription takes, or not from its sender",
		"newer_version": "newer than the subscription's build knows",
		"parked":        "its handler said so",
		"failed":        "it had its attempts",
		"crashed":       "it had its attempts, and the process died of the last",
		"held":          "it came after a message of its key that is here",
		"waiting":       "it is to be tried later, and too many others waited",
		"early":         "it came before what begins its process",
	}
)

// lettersFilter is what chooses dead letters.
type lettersFilter struct {
	Provider     string   `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	Subscription string   `placeholder:"NAME" help:"Only of this subscription."`
	ID           []string `name:"id" placeholder:"ID" help:"Only these dead letters. May be repeated."`
	Key          string   `help:"Only of this partition key."`
	Type         string   `help:"Only of this message type, as in Ordering.OrderPlaced.v1."`
	Error        string   `placeholder:"TEXT" help:"Only with this in the error's text."`
	ErrorType    string   `placeholder:"TYPE" help:"Only with an error of this Go type."`
	Reason       string   `enum:",undecodable,too_large,refused,newer_version,parked,failed,crashed,held,waiting,early" default:"" placeholder:"REASON" help:"Only for this reason: undecodable, too_large, refused, newer_version, parked, failed, crashed, held, waiting or early."`
	Status       []string `enum:"parked,held,waiting,early,replay,replayed,discarded" placeholder:"STATUS" help:"Only in this status: parked, held, waiting, early, replay, replayed or discarded. May be repeated."`
	From         moment   `placeholder:"TIME" help:"Only with a last attempt at this time or later: 2026-01-02T15:04:05Z, or 2h for two hours ago."`
	Until        moment   `placeholder:"TIME" help:"Only with a last attempt before this time."`
}

func (f lettersFilter) filter() subscription.DeadLetterFilter {
	var statuses []subscription.DeadLetterStatus
	for _, s := range f.Status {
		statuses = append(statuses, subscription.DeadLetterStatus(s))
	}
	return subscription.DeadLetterFilter{
		Subscription: f.Subscription, IDs: f.ID, Key: f.Key, Type: f.Type, Error: f.Error, ErrorType: f.ErrorType, Reason: f.Reason,
		Statuses: statuses, From: f.From.Time, Until: f.Until.Time,
	}
}

// eachLetters calls do for the dead letters of every database that is named, or of
// one provider.
func (c *cli) eachLetters(ctx context.Context, only string, do func(provider string, s *subscription.DeadLetters) error) error {
	return c.eachProvider(ctx, only, func(_ *databases, p uow.Provider) error {
		s := subscription.NewDeadLetters(p)
		if err := s.Check(ctx); err != nil {
			return err
		}
		return do(p.Name(), s)
	})
}

type listLettersCmd struct {
	lettersFilter
	Limit int   `default:"50" help:"How many at a time."`
	After int64 `placeholder:"SEQ" help:"Continue after this one; the previous page prints it."`
}

func (l listLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
	all := map[string]subscription.DeadLetterList{}
	err := c.eachLetters(ctx, l.Provider, func(provider string, s *subscription.DeadLetters) (err error) {
		all[provider], err = s.List(ctx, l.filter(), subscription.DeadLetterPage{After: l.After, Limit: l.Limit})
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "ID", "SUBSCRIPTION", "STATUS", "REASON", "TYPE", "KEY", "ATTEMPTS", "LAST ATTEMPT", "ERROR")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, d := range all[provider].Letters {
			t.row(provider, d.ID, d.Subscription, string(d.Status), reasonOf(d), d.Type, oneLine(d.Key), fmt.Sprint(d.Attempts), when(d.LastAt), oneLine(d.Error))
		}
	}
	if err := t.flush(err, "No dead letters match."); err != nil {
		return err
	}
	goOn(stderr, all, func(p subscription.DeadLetterList) (said string, after any, more bool) {
		return fmt.Sprintf("%d of %d", len(p.Letters), p.Total), p.Next, p.Next != 0
	})
	return nil
}

// reasonOf is why a dead letter is there, with what it needs that older builds couldn't
// read.
func reasonOf(d subscription.DeadLetter) string {
	if d.Needs == "" || !d.Open() {
		return d.Reason
	}
	return d.Reason + ", needs " + d.Needs
}

type showLetterCmd struct {
	ID string `arg:"" help:"The dead letter's id, as listed."`
}

// shown is a dead letter with its body also as text, if it is that.
type shown struct {
	Provider string `json:"provider"`
	*subscription.DeadLetterDetails
	Text *string `json:"text"`
}

func (s showLetterCmd) Run(ctx context.Context, c *cli, stdout out) error {
	var found *shown
	err := c.eachLetters(ctx, "", func(provider string, letters *subscription.DeadLetters) error {
		d, err := letters.Show(ctx, s.ID)
		if err == nil {
			found = &shown{Provider: provider, DeadLetterDetails: d}
		}
		if errors.Is(err, subscription.ErrNoDeadLetter) {
			return nil
		}
		return err
	})
	switch {
	case found == nil && err == nil:
		return fmt.Errorf("there is no dead letter %s; `waybill dead-letters list` has them all", s.ID)
	case found == nil:
		return err
	}
	if d := found; d.Body != nil && isText(d.Body) {
		text := string(d.Body)
		d.Text = &text
	}
	if c.JSON {
		return writeJSON(stdout, found)
	}
	found.print(stdout)
	return nil
}

func (s *shown) print(w io.Writer) {
	field := fields(w, 14)
	field("Dead letter", "%s, provider %s", s.ID, s.Provider)
	field("Subscription", "%s", s.Subscription)
	status := statusWords[s.Status]
	if s.Status == subscription.DeadLetterEarly && s.DueAt != nil {
		if status += ", and for an operator, too, from " + when(*s.DueAt) + " on"; s.DueAt.Before(time.Now()) {
			status += ", as it is now"
		}
	}
	field("Status", "%s: %s", s.Status, status)
	field("Reason", "%s: %s", s.Reason, reasonWords[s.Reason])
	if s.Needs != "" && s.Open() {
		name, loads := s.Needs, ""
		if stored, ok := strings.CutPrefix(name, "stored:"); ok {
			name, loads = stored, ", which its handler loads"
		}
		field("Needs", "a build that reads %s%s: the first one that runs handles it by itself", name, loads)
	}
	field("Message", "%s, %s", cmp.Or(s.Type, "of no known type"), s.MessageID)
	field("Topic, key", "%s, %s", s.Topic, s.Key)
	field("Place", "%s", s.place())
	field("Attempts", "%d, from %s to %s (%s ago)", s.Attempts, when(s.FirstAt), when(s.LastAt), since(s.LastAt))
	if s.Replays > 0 {
		due := ""
		if (s.Status == subscription.DeadLetterReplay || s.Status == subscription.DeadLetterWaiting) && s.DueAt != nil {
			due = ", due " + when(*s.DueAt)
		}
		field("Replays", "%d asked for%s", s.Replays, due)
	}
	field("Error", "%s", s.Error)
	if s.ErrorType != "" {
		field("Error type", "%s", s.ErrorType)
	}
	if s.Stack != "" {
		field("Stack", "%s", strings.TrimRight(s.Stack, "\n"))
	}
	for i, name := range slices.Sorted(maps.Keys(s.Headers)) {
		title := ""
		if i == 0 {
			title = "Headers"
		}
		field(title, "%s: %s", name, s.Headers[name])
	}
	if s.Body == nil {
		field("Body", "none")
	} else {
		printBody(w, field, "Body", "", s.Body)
	}
	if s.Status == subscription.DeadLetterEarly {
		fmt.Fprintf(w, "\nIf messages like this may be about what has no process, declare it domain.Optional() there.\n")
	}
	if s.Status == subscription.DeadLetterParked || s.Status == subscription.DeadLetterEarly {
		fmt.Fprintf(w, "\nwaybill dead-letters replay --subscription %s --id %s    handles it again\n", s.Subscription, s.ID)
		fmt.Fprintf(w, "waybill dead-letters discard --subscription %s --id %s   gives it up\n", s.Subscription, s.ID)
	}
}

func (s *shown) place() string {
	switch {
	case s.Status == subscription.DeadLetterEarly:
		return "nothing waits for it: it is handled right after what begins its process"
	case !s.Holds:
		return "its subscription skips: nothing waits for it, and later messages of its key were handled"
	case s.Status == subscription.DeadLetterReplayed || s.Status == subscription.DeadLetterDiscarded:
		return "nothing waits for it"
	case s.Before > 0:
		return fmt.Sprintf("%d of its key before it, the first is %s; %d behind it", s.Before, s.Head, s.Behind)
	}
	return fmt.Sprintf("first of its key; %d behind it", s.Behind)
}

type summarizeCmd struct {
	From  moment `placeholder:"TIME" help:"Only with a last attempt at this time or later: 2026-01-02T15:04:05Z, or 2h for two hours ago."`
	Until moment `placeholder:"TIME" help:"Only with a last attempt before this time."`
}

func (s summarizeCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string][]subscription.DeadLetterCount{}
	err := c.eachLetters(ctx, "", func(provider string, letters *subscription.DeadLetters) (err error) {
		all[provider], err = letters.Summary(ctx, s.From.Time, s.Until.Time)
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "SUBSCRIPTION", "COUNT", "STATUS", "REASON", "TYPE", "ERROR TYPE", "FIRST ATTEMPT", "LAST ATTEMPT")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, n := range all[provider] {
			t.row(provider, n.Subscription, fmt.Sprint(n.Count), string(n.Status), n.Reason, n.Type, n.ErrorType, when(n.FirstAt), when(n.LastAt))
		}
	}
	return t.flush(err, "There are no dead letters.")
}

type lettersLogCmd struct {
	Limit int `default:"50" help:"How many."`
}

func (l lettersLogCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string][]subscription.DeadLetterAction{}
	err := c.eachLetters(ctx, "", func(provider string, s *subscription.DeadLetters) (err error) {
		all[provider], err = s.Actions(ctx, l.Limit)
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "ACTION", "AT", "WHO", "WHAT", "SUBSCRIPTION", "MESSAGES", "ASKED FOR")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, a := range all[provider] {
			t.row(provider, fmt.Sprint(a.ID), when(a.At), a.Actor, a.Action, a.Subscription, fmt.Sprint(a.Messages), string(a.Filter))
		}
	}
	return t.flush(err, "Nothing has been replayed, discarded, removed or retired.")
}

// change is what replay and discard have in common.
type change struct {
	lettersFilter
	deed
}

type replayLettersCmd struct {
	change
	Rate  float64 `placeholder:"N" help:"Replay at most this many per second, not counting messages held behind them. Defaults to all at once."`
	Limit int     `placeholder:"N" help:"At most this many."`
}

type discardLettersCmd struct{ change }

// changing does what was asked for, or says what it would come to.
type changing func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error)

func (r replayLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if !(r.Rate >= 0) || r.Rate > maxRate || r.Limit < 0 {
		return &usageError{errors.New("--rate and --limit are above 0, or left out")}
	}
	return r.run(ctx, c, stdout, stderr, "replay", func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error) {
		return s.Replay(ctx, f, subscription.ReplayOptions{Actor: r.actor(), Rate: r.Rate, Limit: r.Limit, UpTo: upTo, DryRun: dryRun})
	}, func(done subscription.DeadLetterResult) string {
		pace := ""
		if r.Rate > 0 {
			pace = fmt.Sprintf(", the last of them in %v", time.Duration(float64(done.Marked-1)/r.Rate*float64(time.Second)).Round(time.Second))
		}
		return "marked for the runners of " + done.Subscription + pace
	})
}

func (d discardLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return d.run(ctx, c, stdout, stderr, "discard", func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error) {
		return s.Discard(ctx, f, subscription.DiscardOptions{Actor: d.actor(), UpTo: upTo, DryRun: dryRun})
	}, func(done subscription.DeadLetterResult) string { return "of " + done.Subscription + " discarded" })
}

func (a change) run(ctx context.Context, c *cli, stdout out, stderr news, verb string, do changing, did func(subscription.DeadLetterResult) string) error {
	if a.Subscription == "" && len(a.ID) == 0 {
		return &usageError{fmt.Errorf("%s what? Name --subscription or --id, and more to choose less; --dry-run shows what it would do", verb)}
	}
	return act[subscription.DeadLetterResult]{deed: a.deed, do: func(dryRun bool, all map[string]subscription.DeadLetterResult) error {
		return c.eachLetters(ctx, a.Provider, func(provider string, s *subscription.DeadLetters) (err error) {
			plan, planned := all[provider]
			if planned && plan.Marked == 0 {
				return nil
			}
			all[provider], err = do(s, a.filter(), plan.UpTo, dryRun)
			if r := all[provider]; r.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "%s %s; action %d, by %s.\n", messages(r.Marked), did(r), r.Action, a.actor())
			}
			return err
		})
	}, tell: func(all map[string]subscription.DeadLetterResult) (string, error) {
		return a.tell(c, stdout, stderr, verb, all)
	}}.run(ctx, c, stdout, stderr)
}

// tell says what becomes of what was chosen, and returns the question.
func (a change) tell(c *cli, stdout out, stderr news, verb string, all map[string]subscription.DeadLetterResult) (question string, err error) {
	if err := missing(all); err != nil {
		return "", err
	}
	var marked, skipping int64
	for _, r := range all {
		marked += r.Marked
		skipping += r.Skipping
	}
	if !c.JSON {
		if err := tellPlan(stdout, verb, len(a.ID) > 0, all); err != nil {
			return "", err
		}
	}
	if verb == "replay" {
		tellIdle(stderr, all)
	}
	if skipping > 0 && verb == "replay" {
		fmt.Fprintf(stderr, "Out of order: later messages of the keys of %d were handled already, since their subscription skips what it parks.\n", skipping)
	}
	if marked == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], messages(marked)), nil
}

// tellIdle says of which subscription there is nobody who would handle what is marked.
func tellIdle(stderr news, all map[string]subscription.DeadLetterResult) {
	names, running := map[string]bool{}, map[string]bool{}
	for _, r := range all {
		names[r.Subscription] = true
		running[r.Subscription] = running[r.Subscription] || r.Running
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if name != "" && !running[name] {
			fmt.Fprintf(stderr, "No process runs subscription %s now: what is marked is handled once one does. `waybill subscriptions list` has their names.\n", name)
		}
	}
}

// missing is an error if an id is in none of the databases.
func missing(all map[string]subscription.DeadLetterResult) error {
	count := map[string]int{}
	for _, r := range all {
		for _, id := range r.Missing {
			count[id]++
		}
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n < len(all) })
	if len(count) == 0 {
		return nil
	}
	return fmt.Errorf("there is no such dead letter, or it is of another subscription: %s; nothing was changed", strings.Join(slices.Sorted(maps.Keys(count)), ", "))
}

// tellPlan says what becomes of what was chosen: of what was named, all of it.
func tellPlan(stdout out, verb string, named bool, all map[string]subscription.DeadLetterResult) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		r := all[provider]
		if len(all) > 1 {
			if r.Marked+r.Behind+r.Held+r.Underway+r.Busy+r.Past == 0 {
				continue
			}
			fmt.Fprintf(w, "Provider %s\n", provider)
		}
		fmt.Fprintf(w, "%s\t%d\tof subscription %s\n", verb, r.Marked, r.Subscription)
		others := func(n int64) int64 {
			if named || r.Marked == 0 {
				return n
			}
			return 0
		}
		heads := ""
		if r.Behind > 0 {
			heads = "behind parked messages of their keys that are not chosen: add --id " + strings.Join(r.Heads, " --id ")
		}
		for _, line := range []struct {
			name string
			n    int64
			why  string
		}{
			{"follow", r.Following, "held behind them: these follow by themselves"},
			{"left out", r.Behind, heads},
			{"left out", r.Busy, "a runner is handling them just now: look again when it has ended"},
			{"held", others(r.Held), "follow by themselves when the messages before them are replayed or discarded"},
			{"underway", r.Underway, "in replay already"},
			{"past", others(r.Past), "replayed or discarded already"},
		} {
			if line.n > 0 {
				fmt.Fprintf(w, "%s\t%d\t%s\n", line.name, line.n, line.why)
			}
		}
	}
	return w.Flush()
}

func messages(n int64) string { return number(n, "message", "messages") }
