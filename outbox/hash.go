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
// one key would be in two partitions, and two workers would publish them at once.
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
