package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What a step is.
const (
	call   = "->"
	answer = "-->"
	lost   = "-x"
	note   = "note"
	crash  = "crash"
	begin  = "begin"
	end    = "end"
)

type picture struct {
	title, about string
	lanes        []lane
	steps        []step
}

type lane struct{ id, label string }

// step is an arrow between two lanes, or something on the lanes from the first to the
// last.
type step struct {
	kind     string
	from, to int
	text     string
}

func parse(text string) (*picture, error) {
	p := &picture{}
	depth := 0
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := p.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if n := len(p.steps); n > 0 {
			switch p.steps[n-1].kind {
			case begin:
				depth = 1
			case end:
				depth = 0
			}
		}
	}
	if p.title == "" || p.about == "" || len(p.lanes) < 2 || len(p.steps) == 0 {
		return nil, errors.New("it needs a title, what it is about, two lanes at least, and steps")
	}
	if depth > 0 {
		return nil, errors.New("what begins has no end")
	}
	return p, nil
}

func (p *picture) add(line string) error {
	head, text, _ := strings.Cut(line, ":")
	text = strings.TrimSpace(text)
	words := strings.Fields(head)
	if text == "" && head != end {
		return fmt.Errorf("%q has no text: it takes words, a colon and text", line)
	}
	switch {
	case head == "title":
		p.title = text
	case head == "about":
		p.about = text
	case head == begin, head == end:
		p.steps = append(p.steps, step{kind: head, text: text})
	case len(words) == 2 && words[0] == "lane":
		p.lanes = append(p.lanes, lane{words[1], text})
	case len(words) > 1 && (words[0] == note || words[0] == crash):
		return p.addStep(words[0], words[1], words[len(words)-1], text)
	case len(words) == 3 && slices.Contains([]string{call, answer, lost}, words[1]):
		return p.addStep(words[1], words[0], words[2], text)
	default:
		return fmt.Errorf("%q is nothing that can be drawn: title, about, lane ID, A -> B, A --> B, A -x B, note A, crash A, begin or end, a colon and text", line)
	}
	return nil
}

func (p *picture) addStep(kind, from, to, text string) error {
	s := step{kind: kind, text: text}
	for _, end := range []struct {
		id   string
		lane *int
	}{{from, &s.from}, {to, &s.to}} {
		if *end.lane = slices.IndexFunc(p.lanes, func(l lane) bool { return l.id == end.id }); *end.lane < 0 {
			return fmt.Errorf("there is no lane %q", end.id)
		}
	}
	p.steps = append(p.steps, s)
	return nil
}
