package main

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"sync"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/outbox"
)

// desk is a context with one aggregate and one event.
var desk = domain.MustNew("desk",
	domain.Aggregate[*Paper]("paper", domain.Event[PaperFiled]()),
)

const category = "desk::paper"

var topic = outbox.DefaultTopic(category)

// Paper is an aggregate whose document has 500 bytes.
type Paper struct {
	domain.Root
	Text string
}

// PaperFiled is an event of 500 bytes.
type PaperFiled struct{ Text string }

// payload is the size in bytes of a document, and of an event's data.
const payload = 500

func newPaper() *Paper {
	p := &Paper{Root: domain.NewRoot(), Text: text()}
	p.Raise(PaperFiled{Text: p.Text})
	return p
}

// noise doesn't compress to nothing, as a repeated letter would. It is made when it
// is needed: scenario memory measures this program.
var noise = sync.OnceValue(func() string {
	b := make([]byte, 1<<19)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
})

func text() string {
	const length = payload - len(`{"Text":""}`)
	from := mathrand.IntN(len(noise()) - length)
	return noise()[from : from+length]
}
