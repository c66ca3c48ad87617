package processdb

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/process"
)

// Names are the kinds of processes of which there are any. It looks at one row of each.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	var names []string
	err := dbrows.Each(ctx, s.db, "WITH RECURSIVE names(name) AS (SELECT min(process) FROM processes UNION ALL"+
		" SELECT (SELECT min(process) FROM processes WHERE process > n.name) FROM names AS n WHERE n.name IS NOT NULL)"+
		" SELECT name FROM names WHERE name IS NOT NULL", func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("processes: look for their kinds: %w", err)
	}
	return names, nil
}

// Hearer is a process with the last messages that it heard.
type Hearer struct {
	Process

	Heard []process.Heard
}

// Has says whether a message is among the last that it heard.
func (h Hearer) Has(messageID string) bool {
	return slices.ContainsFunc(h.Heard, func(m process.Heard) bool { return m.ID == messageID })
}

// Hearers are those of some processes of a kind that there are.
func (s *Store) Hearers(ctx context.Context, name string, ids []string) ([]Hearer, error) {
	match, err := s.match(Filter{Process: name, IDs: ids})
	if err != nil {
		return nil, err
	}
	var found []Hearer
	err = dbrows.Each(ctx, s.db, "SELECT "+columns+", p.heard FROM processes AS p WHERE ?", func(scan func(...any) error) error {
		var h Hearer
		var heard []byte
		err := h.scan(scan, &heard)
		if err == nil {
			err = json.Unmarshal(heard, &h.Heard)
		}
		found = append(found, h)
		return err
	}, match)
	if err != nil {
		return nil, fmt.Errorf("processes: read what some of %s have heard: %w", name, err)
	}
	return found, nil
}
