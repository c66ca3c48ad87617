package outbox

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// S2-06: the vectors were made by a program in another language from the words of
// PartitionOf's comment.
func TestPartitionOf_F61_GoldenVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/partition.json")
	require.NoError(t, err)
	var vectors []struct {
		Key, Hash string
		Of        map[string]int
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		require.Equal(t, v.Hash, fmt.Sprintf("%016x", hash(v.Key)), "%q", v.Key)
		require.NotEmpty(t, v.Of)
		for partitions, want := range v.Of {
			n, err := strconv.Atoi(partitions)
			require.NoError(t, err)
			require.Equal(t, want, PartitionOf(v.Key, n), "%q in %d", v.Key, n)
		}
	}
}

// F-61, S2-06: a hash with the top bit set must not give a negative partition.
func TestPartitionOf_F61_IsUnsigned(t *testing.T) {
	high := 0
	for i := range 1000 {
		key := fmt.Sprint(i)
		if hash(key) > math.MaxInt64 {
			high++
		}
		for _, n := range []int{1, 2, 3, 64, math.MaxInt32, math.MaxInt} {
			p := PartitionOf(key, n)
			require.GreaterOrEqual(t, p, 0)
			require.Less(t, p, n)
		}
	}
	require.Positive(t, high)
}

// S2-12
func TestPartitionOf_SpreadsKeysThatDifferLittle(t *testing.T) {
	const keys, partitions = 64_000, 64
	for name, key := range map[string]func(int) string{
		"numbers":    func(i int) string { return strconv.Itoa(i) },
		"even":       func(i int) string { return strconv.Itoa(2 * i) },
		"prefixed":   func(i int) string { return fmt.Sprintf("customer-%06d", i) },
		"same end":   func(i int) string { return fmt.Sprintf("%06d-order", i) },
		"one letter": func(i int) string { return fmt.Sprintf("%08x", uint32(i)*64) },
	} {
		counts := make([]int, partitions)
		for i := range keys {
			counts[PartitionOf(key(i), partitions)]++
		}
		// χ² of 63 degrees of freedom is above 130 once in a million times.
		const mean = keys / partitions
		chi := 0.0
		for _, c := range counts {
			chi += float64(c-mean) * float64(c-mean) / mean
		}
		require.Less(t, chi, 130.0, name)
	}
}

func BenchmarkPartitionOf(b *testing.B) {
	for b.Loop() {
		PartitionOf("0198c9a8-7c1e-7a52-9f0b-4a1d5f3c2b10", 64)
	}
}

// O11: the vectors were made by a program in another language from the words of
// KeyOf's comment. SQL has to come to the same.
func TestKeyOf_O11_GoldenVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/keys.json")
	require.NoError(t, err)
	var vectors struct {
		Keys   []struct{ Target, Topic, Category, Key, Hash string }
		Topics []struct{ Topic, Hash string }
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors.Keys)
	for _, v := range vectors.Keys {
		require.Equal(t, v.Hash, strconv.FormatInt(KeyOf(v.Target, v.Topic, v.Category, v.Key), 10), "%q", v)
	}
	require.NotEmpty(t, vectors.Topics)
	for _, v := range vectors.Topics {
		require.Equal(t, v.Hash, strconv.FormatInt(TopicHash(v.Topic), 10), "%q", v)
	}
}
