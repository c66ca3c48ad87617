package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A topic that doesn't hold what it should is an error, whatever is wrong with it.
func TestCheck(t *testing.T) {
	rows, err := sample(64, 50, 5)
	require.NoError(t, err)
	var records []*kgo.Record
	for _, r := range rows {
		records = append(records, &kgo.Record{Key: []byte(r.PartitionKey), Value: r.Payload, Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(r.MessageID)}}})
	}
	require.NoError(t, check(rows, records))

	later := 1 // of the same key as the first
	for string(records[later].Key) != string(records[0].Key) {
		later++
	}
	swapped := append([]*kgo.Record{}, records...)
	swapped[0], swapped[later] = swapped[later], swapped[0]
	require.ErrorContains(t, check(rows, swapped), "1 out of order")
	require.ErrorContains(t, check(rows, records[1:]), "1 are missing")
	require.ErrorContains(t, check(rows, append(records, records[0])), "1 came twice")
	other := *records[0]
	other.Value = []byte("{}")
	require.ErrorContains(t, check(rows, append([]*kgo.Record{&other}, records[1:]...)), "1 are none of them")
}

func TestSpread(t *testing.T) {
	require.Equal(t, spread{Min: 1, Median: 2, Max: 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, spread{Min: 1, Median: 1.5, Max: 2}, spreadOf([]float64{2, 1}))
	require.Equal(t, spread{}, spreadOf(nil))
}
