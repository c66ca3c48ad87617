package kafka

import (
	"encoding/binary"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

// account is what went over the wire for a round, and what Kafka said of it. kgo
// tells only how a batch ended: not whether it was handed over, what was said
// before it was sent again, nor that a server was heard at all.
type account struct {
	places map[place]*fate
	number int
	heard  bool // Some server that let us in said something.
	id     bool // The last that was asked for is a producer's id.
}

// fate is what became of a round's batch.
type fate struct {
	sent, answered int
	unclear        bool        // Kafka said of an attempt that it may be stored.
	last           *kerr.Error // Nil: stored, or nothing was said.
	numbers        numbers
	reused         bool // Another batch had one of its numbers before.
}

// numbers are those by which Kafka recognises a batch that is sent again: of each
// record, counted by partition and producer.
type numbers struct {
	producer     int64
	epoch        int16
	first, count int32
}

// numbersOf are those of an encoded record batch.
func numbersOf(batch []byte) numbers {
	const producer, epoch, first, count, end = 43, 51, 53, 57, 61
	if len(batch) < end {
		return numbers{}
	}
	return numbers{
		producer: int64(binary.BigEndian.Uint64(batch[producer:])),
		epoch:    int16(binary.BigEndian.Uint16(batch[epoch:])),
		first:    int32(binary.BigEndian.Uint32(batch[first:])),
		count:    int32(binary.BigEndian.Uint32(batch[count:])),
	}
}

// reach says that n begins before the end of an earlier batch's. They begin again from 0
// behind the largest int32.
func (n numbers) reach(earlier numbers) bool {
	if n.producer != earlier.producer || n.epoch != earlier.epoch {
		return false
	}
	return uint32(n.first-earlier.first-earlier.count)&math.MaxInt32 > math.MaxInt32/2
}

// left says that a produce request may have left.
func (a *account) left() bool {
	for _, f := range a.places {
		if f.sent > 0 {
			return true
		}
	}
	return false
}

// of is the zero value for a place to which nothing was sent.
func (a *account) of(at place) fate {
	if f := a.places[at]; f != nil {
		return *f
	}
	return fate{}
}

// doubt says that the batch may be stored.
func (f fate) doubt() bool { return f.unclear || f.sent > f.answered }

// stored says that Kafka has said so of the batch.
func (f fate) stored() bool { return f.sent > 0 && !f.doubt() && f.last == nil && !f.reused }

// proven says that kgo's word for a batch that is stored is Kafka's: that Kafka was heard,
// and didn't mean another batch. To one that was sent again it may say that it has it.
func (f fate) proven() bool { return f.answered > 0 && !f.reused && (f.last == nil || f.sent > 1) }

// request is a produce request that is out.
type request struct {
	account int // Whose it is: an answer may come late.
	version int16
	id      int32
	places  []place
}

const (
	produceKey = 0
	joinKey    = 11
	syncKey    = 14
	initKey    = 22
	endKey     = 26
	flexible   = 9 // From this version on, produce has tagged fields.
)

// keyOf is a request's, from its length on.
func keyOf(b []byte) uint16 {
	if len(b) < 6 {
		return math.MaxUint16
	}
	return binary.BigEndian.Uint16(b[4:])
}

// waitsForOthers says of a request that it is answered when other members have asked too.
func waitsForOthers(b []byte) bool {
	key := keyOf(b)
	return key == joinKey || key == syncKey
}

// asked takes in a request as it is written, from its length on. It is nil for
// all but produce.
func (a *account) asked(b []byte) *request {
	const header = 4 + 2 + 2 + 4 + 2 // length, key, version, id, length of the client's name
	if len(b) < header {
		return nil
	}
	number := func(at int) int16 { return int16(binary.BigEndian.Uint16(b[at:])) }
	key := number(4)
	a.id = key == initKey || a.id && key != produceKey
	if key != produceKey {
		return nil
	}
	r := &request{account: a.number, version: number(6), id: int32(binary.BigEndian.Uint32(b[8:]))}
	body := b[header:]
	if name := int(number(12)); name > 0 && name <= len(body) {
		body = body[name:]
	}
	if r.version >= flexible && len(body) > 0 {
		body = body[1:] // kgo sends no tags in headers.
	}
	parsed := kmsg.ProduceRequest{Version: r.version}
	if parsed.UnsafeReadFrom(body) != nil {
		return nil
	}
	if a.places == nil {
		a.places = map[place]*fate{}
	}
	for _, topic := range parsed.Topics {
		for _, p := range topic.Partitions {
			at := place{string([]byte(topic.Topic)), p.Partition} // Unsafe reading shares b, which kgo uses again.
			if a.places[at] == nil {
				a.places[at] = &fate{}
			}
			a.places[at].sent++
			a.places[at].numbers = numbersOf(p.Records)
			r.places = append(r.places, at)
		}
	}
	return r
}

// unasked takes back what didn't leave.
func (a *account) unasked(r *request) {
	if r == nil || r.account != a.number {
		return
	}
	for _, at := range r.places {
		if f := a.places[at]; f != nil && f.sent > f.answered {
			f.sent--
		}
	}
}

// answered takes in what a server said to a produce request, without its id.
func (a *account) answered(r *request, body []byte) {
	if r.account != a.number {
		return
	}
	if r.version >= flexible && len(body) > 0 {
		body = body[1:]
	}
	said := kmsg.ProduceResponse{Version: r.version}
	if said.UnsafeReadFrom(body) != nil {
		return
	}
	for _, topic := range said.Topics {
		for _, p := range topic.Partitions {
			f := a.places[place{topic.Topic, p.Partition}]
			if f == nil {
				continue
			}
			f.answered++
			f.last = codeOf(kerr.ErrorForCode(p.ErrorCode))
			f.unclear = f.unclear || f.last != nil && refusals[f.last].unclear
		}
	}
}

// reader finds the answers to produce requests in what a connection reads.
type reader struct {
	out  map[int32]*request
	head []byte // Length and id of an answer, as far as they came.
	rest int    // Bytes of it that are still to come.
	want *request
	body []byte
}

func (r *reader) expect(sent *request) {
	if sent == nil {
		return
	}
	if r.out == nil {
		r.out = map[int32]*request{}
	}
	r.out[sent.id] = sent
}

// feed takes in what was read.
func (r *reader) feed(b []byte, a *account) {
	const head = 4 + 4
	for len(b) > 0 {
		if r.rest == 0 {
			n := min(head-len(r.head), len(b))
			r.head, b = append(r.head, b[:n]...), b[n:]
			if len(r.head) < head {
				return
			}
			r.rest = max(0, int(binary.BigEndian.Uint32(r.head))-4)
			id := int32(binary.BigEndian.Uint32(r.head[4:]))
			r.want = r.out[id]
			delete(r.out, id)
			r.head, r.body = r.head[:0], nil
			continue
		}
		n := min(r.rest, len(b))
		if r.want != nil {
			r.body = append(r.body, b[:n]...)
		}
		if r.rest -= n; r.rest == 0 && r.want != nil {
			a.answered(r.want, r.body)
			r.want, r.body = nil, nil
		}
		b = b[n:]
	}
}
