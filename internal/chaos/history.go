package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/verdict"
)

// entry is a line of a history: something that happened, or what was left in the end.
type entry struct {
	At      time.Time `json:"at,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	What    string    `json:"what"` // start, end, fault, saved, accepted, row, step, delivery, effect, forgotten, ending, theft
	Kind    string    `json:"kind,omitempty"`
	Process string    `json:"process,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Row     int64     `json:"row,omitempty"`
	Message string    `json:"message,omitempty"`
	Key     string    `json:"key,omitempty"`
	Number  int64     `json:"number,omitempty"`
	Text    string    `json:"text,omitempty"`
}

// history is what was noted while it happened.
type history struct {
	mu      sync.Mutex
	entries []entry
}

func (h *history) note(e entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = append(h.entries, e)
}

// evidence is what was left, as entries.
func (f *found) entries() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		ids := make(map[int64]verdict.Row, len(f.Rows))
		for _, r := range f.Rows {
			ids[r.Seq] = r
			if !yield(entry{What: "row", Row: r.Seq, Message: r.ID, Key: r.Key, Text: fmt.Sprintf("%s, attempts %d, losses %d", r.Status, r.Attempts, r.Losses)}) {
				return
			}
		}
		for _, s := range f.Steps {
			if !yield(entry{At: s.At, What: "step", Row: s.Seq, Message: ids[s.Seq].ID, Key: ids[s.Seq].Key, Text: fmt.Sprintf("%s to %s, claim %d of %s", s.Old, s.New, s.Claim, s.Owner)}) {
				return
			}
		}
		for _, d := range f.Deliveries {
			if !yield(entry{At: d.At, What: "delivery", Message: d.ID, Key: d.Key, Text: fmt.Sprintf("%s, partition %d, offset %d", d.Topic, d.Partition, d.Offset)}) {
				return
			}
		}
		for _, e := range f.effects {
			what := "effect"
			if e.Forgotten {
				what = "forgotten"
			}
			if !yield(entry{At: e.At, What: what, Key: e.Key, Number: e.Number, Message: e.message}) {
				return
			}
		}
		for _, g := range f.Endings {
			if !yield(entry{At: g.At, What: "ending", Text: fmt.Sprintf("the membership of %s was ended %s before its lease by %s", g.Name, g.Early, g.By)}) {
				return
			}
		}
		for _, theft := range f.Thefts {
			if !yield(entry{What: "theft", Text: theft}) {
				return
			}
		}
	}
}

// write writes all entries, one a line.
func (h *history) write(path string, f *found) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriter(file)
	lines := json.NewEncoder(buffer)
	for e := range h.all(f) {
		if err = lines.Encode(e); err != nil {
			break
		}
	}
	if err == nil {
		err = buffer.Flush()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}

func (h *history) all(f *found) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		h.mu.Lock()
		noted := slices.Clone(h.entries)
		h.mu.Unlock()
		for _, e := range noted {
			if !yield(e) {
				return
			}
		}
		for e := range f.entries() {
			if !yield(e) {
				return
			}
		}
	}
}

var (
	rowWords     = regexp.MustCompile(`\brow (\d+)`)
	messageWords = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	keyWords     = regexp.MustCompile(`account-\d+`)
)

// mostLines are shown of what a violation is about, the last ones.
const mostLines = 20

// about are the entries that a violation is about: those of its rows and messages, or if it
// names none, those of its account; in the order of time.
func (h *history) about(violation string, f *found) []entry {
	rows, messages := map[int64]bool{}, map[string]bool{}
	for _, m := range rowWords.FindAllStringSubmatch(violation, -1) {
		n, _ := strconv.ParseInt(m[1], 10, 64) // digits
		rows[n] = true
	}
	for _, m := range messageWords.FindAllString(violation, -1) {
		messages[m] = true
	}
	for _, r := range f.Rows {
		if rows[r.Seq] {
			messages[r.ID] = true
		}
	}
	keys := keyWords.FindAllString(violation, -1)
	byKey := len(rows)+len(messages) == 0
	var lines []entry
	for e := range h.all(f) {
		if rows[e.Row] || messages[e.Message] || byKey && slices.Contains(keys, e.Key) {
			lines = append(lines, e)
		}
	}
	slices.SortStableFunc(lines, func(a, b entry) int { return a.At.Compare(b.At) })
	return lines[max(0, len(lines)-mostLines):]
}
