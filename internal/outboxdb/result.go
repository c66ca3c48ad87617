package outboxdb

import (
	"encoding/binary"
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
	postgres [][]byte // in PostgreSQL's binary form; the driver uses their memory again
	copies   *copies
	sqlite   []any
}

// answers are what PostgreSQL says to the statements of a step. The last one's rows are told as
// they come, without a copy of them: by then all before are known to be prepared. What those
// say is kept until then, as it comes again if one was not.
type answers struct {
	runs    []statement
	earlier []answer
	err     error // of who was told
	copies  copies
}

// answer is a row of one of a step's statements.
type answer struct {
	of      int
	columns [][]byte
}

// of takes the rows of statement i; nil: there is none of interest.
func (a *answers) of(i int) func(columns [][]byte) error {
	switch {
	case a.runs[i].row == nil:
		return nil
	case i < len(a.runs)-1:
		return func(columns [][]byte) error {
			a.earlier = append(a.earlier, answer{i, a.copies.columns(columns)})
			return nil
		}
	}
	return func(columns [][]byte) error {
		if a.tell() == nil {
			a.err = a.runs[i].row(result{postgres: columns, copies: &a.copies})
		}
		return nil
	}
}

// tell tells the rows that were kept.
func (a *answers) tell() error {
	for _, e := range a.earlier {
		if a.err == nil {
			a.err = a.runs[e.of].row(result{postgres: e.columns, copies: &a.copies})
		}
	}
	a.earlier = nil
	return a.err
}

// copies are texts and bodies that outlast the driver's memory. They lie together, more of them
// with each that comes: most statements have one row, and some thousands.
type copies struct {
	text   strings.Builder
	bodies []byte
	rows   [][]byte
}

// together is how many bytes lie together, all of which stay as long as one of them is used.
const together = 16 << 10

// columnsTogether is how many columns do.
const columnsTogether = 512

func (c *copies) string(b []byte) string {
	if c.text.Cap()-c.text.Len() < len(b) {
		size := min(2*c.text.Cap(), together)
		c.text = strings.Builder{}
		c.text.Grow(max(size, len(b)))
	}
	first := c.text.Len()
	c.text.Write(b)
	return c.text.String()[first:]
}

func (c *copies) bytes(b []byte) []byte {
	if cap(c.bodies)-len(c.bodies) < len(b) {
		c.bodies = make([]byte, 0, max(min(2*cap(c.bodies), together), len(b)))
	}
	first := len(c.bodies)
	c.bodies = append(c.bodies, b...)
	return c.bodies[first:len(c.bodies):len(c.bodies)]
}

// columns are a row's; a NULL is nil.
func (c *copies) columns(row [][]byte) [][]byte {
	if cap(c.rows)-len(c.rows) < len(row) {
		c.rows = make([][]byte, 0, max(min(2*cap(c.rows), columnsTogether), len(row)))
	}
	first := len(c.rows)
	for _, column := range row {
		if column != nil {
			column = c.bytes(column)
		}
		c.rows = append(c.rows, column)
	}
	return c.rows[first:len(c.rows):len(c.rows)]
}

func (r *result) null(i int) bool {
	if r.sqlite != nil {
		return r.sqlite[i] == nil
	}
	return r.postgres[i] == nil
}

// number is an integer of two, four or eight bytes, or a boolean of one.
func (r *result) number(i int) int64 {
	if r.sqlite != nil {
		n, _ := r.sqlite[i].(int64)
		return n
	}
	switch c := r.postgres[i]; len(c) {
	case 1:
		return int64(c[0])
	case 2:
		return int64(int16(binary.BigEndian.Uint16(c))) //nolint:gosec // that is what it is
	case 4:
		return int64(int32(binary.BigEndian.Uint32(c))) //nolint:gosec // that is what it is
	case 8:
		return int64(binary.BigEndian.Uint64(c)) //nolint:gosec // that is what it is
	}
	return 0
}

func (r *result) yes(i int) bool { return r.number(i) != 0 }

func (r *result) text(i int) string {
	if r.sqlite != nil {
		s, _ := r.sqlite[i].(string)
		return s
	}
	return r.copies.string(r.postgres[i])
}

func (r *result) bytes(i int) []byte {
	if r.sqlite != nil {
		b, _ := r.sqlite[i].([]byte)
		return b
	}
	return r.copies.bytes(r.postgres[i])
}

func (r *result) uuid(i int) (string, error) {
	if r.sqlite != nil {
		return r.text(i), nil
	}
	id, err := uuid.FromBytes(r.postgres[i])
	if err != nil {
		return "", fmt.Errorf("outbox: an id has %d bytes instead of 16", len(r.postgres[i]))
	}
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
