package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// What a box is.
const (
	plain       = "box"
	broker      = "broker"
	transaction = "transaction"
)

// boxes is a picture of boxes in columns and rows, with arrows between them.
type boxes struct {
	title, about string
	all          []*box
	arrows       []arrow
}

// box has its name and what stands below it; a transaction has rows instead.
type box struct {
	kind, id    string
	column, row int
	texts       []string
	under       string

	x, y, width, height int // Where it is drawn.
}

// arrow begins at a row of a transaction, or at the box if that is 0.
type arrow struct {
	from, to *box
	row      int
}

func parseBoxes(text string) (*boxes, error) {
	b := &boxes{}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := b.add(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if b.title == "" || b.about == "" || len(b.all) < 2 || len(b.arrows) == 0 {
		return nil, errors.New("it needs a title, what it is about, two boxes at least, and arrows")
	}
	return b, nil
}

func (b *boxes) add(line string) error {
	head, text, _ := strings.Cut(line, ":")
	text = strings.TrimSpace(text)
	words := strings.Fields(head)
	switch {
	case len(words) == 3 && words[1] == call:
		return b.addArrow(words[0], words[2])
	case text == "":
		return fmt.Errorf("%q has no text: it takes words, a colon and text", line)
	case head == "title":
		b.title = text
	case head == "about":
		b.about = text
	case len(words) == 2 && words[0] == "under":
		under, err := b.find(words[1])
		if err == nil {
			under.under = text
		}
		return err
	case len(words) == 4 && slices.Contains([]string{plain, broker, transaction}, words[0]):
		return b.addBox(words, text)
	default:
		return fmt.Errorf("%q is nothing that can be drawn: title, about, box ID COLUMN ROW, broker or transaction like it, or under ID, a colon and text; or A -> B", line)
	}
	return nil
}

func (b *boxes) addBox(words []string, text string) error {
	column, err := strconv.Atoi(words[2])
	row, err2 := strconv.Atoi(words[3])
	if err := errors.Join(err, err2); err != nil || column < 1 || row < 1 {
		return fmt.Errorf("%s is in no column and row: they are counted from 1", words[1])
	}
	if slices.ContainsFunc(b.all, func(o *box) bool { return o.id == words[1] || o.column == column && o.row == row }) {
		return fmt.Errorf("another box is called %s, or is at its place", words[1])
	}
	texts := strings.Split(text, "|")
	for i := range texts {
		texts[i] = strings.TrimSpace(texts[i])
	}
	b.all = append(b.all, &box{kind: words[0], id: words[1], column: column, row: row, texts: texts})
	return nil
}

func (b *boxes) addArrow(from, to string) error {
	id, number, numbered := strings.Cut(from, ".")
	a := arrow{}
	var err error
	if a.from, err = b.find(id); err != nil {
		return err
	}
	if a.to, err = b.find(to); err != nil {
		return err
	}
	if numbered {
		if a.row, err = strconv.Atoi(number); err != nil || a.from.kind != transaction || a.row < 1 || a.row >= len(a.from.texts) {
			return fmt.Errorf("%s has no row %s", id, number)
		}
	}
	if right, below := a.from.column < a.to.column, a.from.column == a.to.column && a.from.row < a.to.row; !right && !below {
		return fmt.Errorf("an arrow goes to a column on the right or downwards: not from %s to %s", from, to)
	}
	b.arrows = append(b.arrows, a)
	return nil
}

func (b *boxes) find(id string) (*box, error) {
	if i := slices.IndexFunc(b.all, func(o *box) bool { return o.id == id }); i >= 0 {
		return b.all[i], nil
	}
	return nil, fmt.Errorf("there is no box %q", id)
}
