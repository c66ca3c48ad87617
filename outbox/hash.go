package outbox

// PartitionOf is the partition of a key: a number from 0 to partitions−1, the
// same in every process, build and language. partitions must be positive.
//
// The hash is FNV-1a over the key's UTF-8 bytes with 64 bits (offset basis
// 0xcbf29ce484222325, prime 0x100000001b3), then a finaliser
//
//	h ^= h >> 33;  h *= 0xff51afd7ed558ccd
//	h ^= h >> 33;  h *= 0xc4ceb9fe1a85ec53
//	h ^= h >> 33
//
// in unsigned arithmetic modulo 2⁶⁴, and the unsigned remainder by partitions.
// Without the finaliser the lowest bit would be the parity of the bytes' lowest
// bits, and a power of two would see little else. It must never change: rows of
// one key would be in two partitions, and two members would publish them at once.
func PartitionOf(key string, partitions int) int {
	return int(hash(key) % uint64(partitions))
}

func hash(key string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(key) {
		h ^= uint64(key[i])
		h *= 0x100000001b3
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}

// KeyOf is what the order of events hangs on: events of one target, topic, category
// and partition key leave in the order of their numbers. topic is the one that they
// go to: [DefaultTopic] of the category where a row says none.
//
// The sum is two FNV-1a of 32 bits over the UTF-8 bytes of the four, with 0x1F between
// them: the high half has the offset basis 0x811c9dc5, the low half 0xcbf29ce4, so that
// SQL can compute it with numbers of 64 bits. Keys whose sums are equal wait for each
// other, and no more. It must never change while rows are undelivered.
func KeyOf(target, topic, category, partitionKey string) int64 {
	h := newSum().add(target).add("\x1f").add(topic).add("\x1f").add(category).add("\x1f").add(partitionKey)
	return h.number()
}

// TopicHash is [KeyOf]'s sum of a topic alone.
func TopicHash(topic string) int64 { return newSum().add(topic).number() }

type sum struct{ high, low uint32 }

func newSum() sum { return sum{0x811c9dc5, 0xcbf29ce4} }

func (h sum) add(s string) sum {
	for i := range len(s) {
		h.high = (h.high ^ uint32(s[i])) * 16777619
		h.low = (h.low ^ uint32(s[i])) * 16777619
	}
	return h
}

func (h sum) number() int64 { return int64(uint64(h.high)<<32 | uint64(h.low)) }
