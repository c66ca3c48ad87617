package outboxdb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// result is a row of what either database answers. A NULL
// is the zero value of what it is read as.
type result struct {
	postgres string  // all columns but the large one, in PostgreSQL's binary form
	ends     []int32 // of each column in it; the complement for a NULL
	at       int     // of the large column
	large    []byte  // nil: there is none
	sqlite   []any
}

// large is from how many bytes on the longest column, which is a message's body, is kept
// apart: it is read as bytes, and would be copied again.
const large = 256

// results are what one statement answers. Rows lie together, more with each that has come:
// most statements have one, and some thousands.
type results struct {
	rows []result
	ends []int32
	text strings.Builder
}

const (
	rowsTogether = 64
	textTogether = 16 << 10 // bytes, which all stay as long as a text of them does
)

// add copies a row, of which the driver uses the memory again.
func (a *results) add(columns [][]byte) {
	together := min(1+len(a.rows), rowsTogether)
	if cap(a.ends)-len(a.ends) < len(columns) {
		a.ends = make([]int32, 0, together*len(columns))
	}
	a.ends = a.ends[:len(a.ends)+len(columns)]
	r := result{ends: a.ends[len(a.ends)-len(columns):], at: -1}
	longest, size := large-1, 0
	for i, c := range columns {
		if size += len(c); len(c) > longest {
			longest, r.at = len(c), i
		}
	}
	if r.at >= 0 {
		r.large = bytes.Clone(columns[r.at])
		size -= longest
	}
	if a.text.Cap()-a.text.Len() < size {
		a.text = strings.Builder{}
		a.text.Grow(max(size, min(together*size, textTogether)))
	}
	first := a.text.Len()
	for i, c := range columns {
		if i != r.at {
			a.text.Write(c)
		}
		if r.ends[i] = int32(a.text.Len() - first); c == nil { //nolint:gosec // a message of the server is smaller
			r.ends[i] = ^r.ends[i]
		}
	}
	r.postgres = a.text.String()[first:]
	a.rows = append(a.rows, r)
}

// column is one of PostgreSQL's.
func (r *result) column(i int) string {
	if i == r.at {
		return string(r.large)
	}
	begin := int32(0)
	if i > 0 {
		begin = max(r.ends[i-1], ^r.ends[i-1])
	}
	return r.postgres[begin:max(r.ends[i], ^r.ends[i])]
}

func (r *result) null(i int) bool {
	if r.sqlite != nil {
		return r.sqlite[i] == nil
	}
	return r.ends[i] < 0
}

// number is an integer of two, four or eight bytes, or a boolean of one.
func (r *result) number(i int) int64 {
	if r.sqlite != nil {
		n, _ := r.sqlite[i].(int64)
		return n
	}
	c, n := r.column(i), uint64(0)
	for j := range len(c) {
		n = n<<8 | uint64(c[j])
	}
	if len(c) == 2 || len(c) == 4 {
		unused := 64 - 8*len(c)
		return int64(n<<unused) >> unused
	}
	return int64(n)
}

func (r *result) yes(i int) bool { return r.number(i) != 0 }

func (r *result) text(i int) string {
	if r.sqlite != nil {
		s, _ := r.sqlite[i].(string)
		return s
	}
	return r.column(i)
}

func (r *result) bytes(i int) []byte {
	if r.sqlite != nil {
		b, _ := r.sqlite[i].([]byte)
		return b
	}
	if i == r.at {
		return r.large
	}
	return []byte(r.column(i))
}

func (r *result) uuid(i int) (string, error) {
	if r.sqlite != nil {
		return r.text(i), nil
	}
	var id uuid.UUID
	c := r.column(i)
	if len(c) != len(id) {
		return "", fmt.Errorf("outbox: an id has %d bytes instead of %d", len(c), len(id))
	}
	copy(id[:], c)
	return id.String(), nil
}

// epoch is where PostgreSQL's times begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (r *result) time(i int) (time.Time, error) {
	if r.sqlite == nil {
		return epoch.Add(time.Duration(r.number(i)) * time.Microsecond), nil
	}
	var t dbtime.Time
	err := t.Scan(r.sqlite[i])
	return t.Time, err
}

// jsonOf is a list as SQLite's json_each takes it.
func jsonOf(list any) string {
	b, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("outbox: %T: %v", list, err)) // lists of numbers and texts have a form
	}
	if string(b) == "null" {
		return "[]"
	}
	return string(b)
}
