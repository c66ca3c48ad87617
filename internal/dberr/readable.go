package dberr

import (
	"errors"
	"fmt"
)

// Readable is err, or what is wrong with it: an error that comes from an application may
// be a pointer that is nil, and then panics where it is read, long after the code that may.
func Readable(err error) (readable error) {
	defer func() {
		if crash := recover(); crash != nil {
			readable = fmt.Errorf("the error that was returned, a %T, panics when it is read (%v): return nil for none, and never a nil pointer", err, crash)
		}
	}()
	if err != nil {
		_, _ = err.Error(), errors.Is(err, errNobodys) // which asks for all that it wraps
	}
	return err
}

// errNobodys is no error that there is.
var errNobodys = errors.New("nobody's")
