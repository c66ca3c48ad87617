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
	nothing := ""
	if t.rows == 0 && err == nil {
		nothing = l.noLetters(ctx, c)
	}
	err = t.flush(err, nothing)
	goOn(stderr, all, func(p subscription.DeadLetterList) (said string, after any, more bool) {
		return fmt.Sprintf("%d of %d", len(p.Letters), p.Total), p.Next, p.Next != 0
	})
	return err
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
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
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
