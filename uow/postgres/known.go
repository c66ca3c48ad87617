package postgres

import (
	"container/list"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxPrepared is how many statements a connection keeps prepared. One costs the
// server about 6 kB.
const maxPrepared = 256

// knownOn is the key under which a connection keeps what it knows.
const knownOn = "waybill"

// known are the statements that a connection has prepared, those that were used last
// in front.
type known struct {
	order  list.List // of names
	byName map[string]*list.Element
	missed time.Time // when one was last found to be unknown to the server
}

func knownTo(conn *pgx.Conn) *known {
	data := conn.PgConn().CustomData()
	k, ok := data[knownOn].(*known)
	if !ok {
		k = &known{byName: map[string]*list.Element{}}
		data[knownOn] = k
	}
	return k
}

// use notes that requests are about to be sent: which of their statements have to be
// prepared, and which others closed, as there are too many.
func (k *known) use(requests []request) (fresh map[string]bool, surplus []string) {
	inUse := map[string]bool{}
	for _, r := range requests {
		switch at := k.byName[r.name]; {
		case r.name == "" || inUse[r.name]:
			continue
		case at != nil:
			k.order.MoveToFront(at)
		default:
			if fresh == nil {
				fresh = map[string]bool{}
			}
			fresh[r.name] = true
			k.byName[r.name] = k.order.PushFront(r.name)
		}
		inUse[r.name] = true
	}
	for k.order.Len() > max(maxPrepared, len(inUse)) {
		name := k.order.Back().Value.(string)
		k.forget(name)
		surplus = append(surplus, name)
	}
	return fresh, surplus
}

func (k *known) forget(name string) {
	if at := k.byName[name]; at != nil {
		k.order.Remove(at)
		delete(k.byName, name)
	}
}

// forgetAll is for a server that doesn't know what it should.
func (k *known) forgetAll() {
	k.order.Init()
	clear(k.byName)
}
