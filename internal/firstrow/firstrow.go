// Package firstrow has a query tell with its first row whether it failed behind it.
//
// A database may send a row and fail afterwards: at the end of the statement, where
// constraints are checked, or at the commit of one that is a transaction of its own. Who
// wants one row, as a bun query that scans into variables, doesn't read on, and would take
// the failure for a success.
package firstrow

import (
	"bytes"
	"database/sql/driver"
	"errors"
	"io"
)

// Reader reads the rows of one query. The zero value is at its beginning.
type Reader struct {
	begun, ahead bool
	second       []driver.Value
	err          error // of the second row; io.EOF: there is none
}

// Next is as that of [driver.Rows], which next is: but before the first row is returned, the
// second one is read, or the end.
func (r *Reader) Next(dest []driver.Value, next func([]driver.Value) error) error {
	switch {
	case !r.begun:
		r.begun = true
		if err := next(dest); err != nil {
			return err
		}
		for i, v := range dest {
			if b, ok := v.([]byte); ok { // It is the driver's until the second row is read.
				dest[i] = bytes.Clone(b)
			}
		}
		r.ahead, r.second = true, make([]driver.Value, len(dest))
		if r.err = next(r.second); r.err != nil && !errors.Is(r.err, io.EOF) {
			return r.err
		}
		return nil
	case r.ahead:
		r.ahead = false
		copy(dest, r.second)
		return r.err
	}
	return next(dest)
}
