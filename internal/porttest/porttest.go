// Package porttest finds ports for servers that tests start as processes, or start again.
package porttest

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Below those that the kernel gives to clients, and to servers that ask for any: between
// the moment a port is found and the one its server listens, and while a server is killed,
// nobody gets it by chance.
const first, last = 12_000, 20_000

var given sync.Map // Ports that this process has.

// Free is a port of 127.0.0.1 that nobody listens on, and that this process hasn't been
// given before. It panics if there is none.
func Free() int {
	for range 1000 {
		n := first + rand.IntN(last-first)
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", local(n))
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, taken := given.LoadOrStore(n, true); !taken {
			return n
		}
	}
	panic("no port is free between 12000 and 20000")
}

// Address is the host:port of a free port.
func Address() string { return local(Free()) }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
