// Package apart calls code that isn't ours on a goroutine of its own, which it may end.
package apart

import "errors"

// ErrEnded says that what was called ended its goroutine.
var ErrEnded = errors.New("it ended its goroutine (runtime.Goexit; in a test FailNow does that, and with it what require calls): return an error instead")

// Call is f(). A worker that called f itself would end with it, and nobody would be told
// what is stuck then. f recovers its own panics.
func Call(f func() error) error {
	answered := make(chan error, 1)
	go func() {
		err := ErrEnded
		defer func() { answered <- err }()
		err = f()
	}()
	return <-answered
}
