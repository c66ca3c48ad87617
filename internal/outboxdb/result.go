package outboxdb

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// result is a row of what either database answers. A NULL
// is the zero value of what it is read as.
type result struct {
	postgres [][]byte // in PostgreSQL's binary form
	sqlite   []any
}

func (r result) null(i int) bool {
	if r.sqlite != nil {
		return r.sqlite[i] == nil
	}
	return r.postgres[i] == nil
}

func (r result) number(i int) int64 {
	if r.sqlite != nil {
		n, _ := r.sqlite[i].(int64)
		return n
	}
	switch b := r.postgres[i]; len(b) {
	case 1:
		return int64(b[0]) // a boolean
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b)))
	case 8:
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r result) yes(i int) bool { return r.number(i) != 0 }

func (r result) text(i int) string {
	if r.sqlite != nil {
		s, _ := r.sqlite[i].(string)
		return s
	}
	return string(r.postgres[i])
}

func (r result) bytes(i int) []byte {
	if r.sqlite != nil {
		b, _ := r.sqlite[i].([]byte)
		return b
	}
	return r.postgres[i]
}

func (r result) uuid(i int) (string, error) {
	if r.sqlite != nil {
		return r.text(i), nil
	}
	id, err := uuid.FromBytes(r.postgres[i])
	return id.String(), err
}

// epoch is where PostgreSQL's times begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (r result) time(i int) (time.Time, error) {
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
