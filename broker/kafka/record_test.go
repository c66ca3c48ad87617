package kafka

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
)

func someMessages(n, headers int, size func() int) []broker.Message {
	all := make([]broker.Message, n)
	for i := range all {
		m := broker.Message{ID: fmt.Sprint("id-", i), Topic: "topic", Key: fmt.Sprint("key-", i), Body: []byte("body"), Headers: map[string]string{}}
		for h := range headers {
			m.Headers[fmt.Sprint("header-", h)] = fmt.Sprint(i, "/", h, strings.Repeat("x", size()))
		}
		all[i] = m
	}
	return all
}

// The texts and headers of a call lie together, whatever their sizes, and each is its
// record's own; so do those of what is received together.
func TestRecords_EachHasItsOwnTexts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	messages := someMessages(500, 5, func() int {
		if r.IntN(50) == 0 {
			return textAhead
		}
		return r.IntN(1000)
	})
	messages[7].Key = "" // Refused.
	c := newCall(1<<20, messages)
	require.Len(t, c.failed, 1)
	var at texts
	decoded := make([]broker.Message, len(messages))
	for i := range c.records {
		decoded[i] = decode(&c.records[i].Record, &at, len(c.records)-i-1)
	}
	for i, m := range decoded {
		if i != 7 {
			require.Equal(t, messages[i], m)
		}
	}
	key := &c.records[0].Record
	_ = append(key.Key, "more"...)
	require.Equal(t, "id-0", string(key.Headers[0].Value), "who appends to one has a copy")
}

func TestRecords_AllocateByCallAndNotByMessage(t *testing.T) {
	messages := someMessages(500, 8, func() int { return 20 })
	require.Less(t, testing.AllocsPerRun(5, func() { newCall(1<<20, messages) }), 50.0, "of 500 messages")

	sent := newCall(1<<20, messages)
	require.Less(t, testing.AllocsPerRun(5, func() {
		var at texts
		for i := range sent.records {
			decode(&sent.records[i].Record, &at, len(sent.records)-i-1)
		}
	}), 500*4.5, "each has its map of headers, which takes up to four")
}
