package repository_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/repository"
)

// BenchmarkSave stores a new aggregate of 500 bytes with one event, and its
// outbox row, in a unit of its own.
func BenchmarkSave(b *testing.B) {
	b.Run("postgres", func(b *testing.B) { benchmarkSave(b, openPostgres(b, postgresDSN(b))) })
	b.Run("sqlite", func(b *testing.B) { benchmarkSave(b, openSQLite(b, "default")) })
}

func benchmarkSave(b *testing.B, db testDB) {
	b.Run("document", func(b *testing.B) { benchmarkSaveOf(b, repository.New[*Tally](db.units), newTally) })
	b.Run("mapped", func(b *testing.B) { benchmarkSaveOf(b, repository.Mapped(db.units, basketMapping), newBasket) })
	b.Run("events", func(b *testing.B) { benchmarkSaveOf(b, repository.EventSourced[*Ledger](db.units), newLedger) })
}

var benchmarkID atomic.Int64

func benchmarkSaveOf[A counter](b *testing.B, repo *repository.Repository[A], create func(string) A) {
	text := strings.Repeat("x", 500)
	b.ReportAllocs()
	for b.Loop() {
		a := create(fmt.Sprint(benchmarkID.Add(1)))
		a.SetLabel(text)
		require.NoError(b, repo.Save(b.Context(), a))
	}
}

// BenchmarkUpdate loads a document and stores it again.
func BenchmarkUpdate(b *testing.B) {
	run := func(b *testing.B, db testDB) {
		tallies := repository.New[*Tally](db.units)
		a := newTally("a")
		a.SetLabel(strings.Repeat("x", 500))
		require.NoError(b, tallies.Save(b.Context(), a))
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, tallies.Update(b.Context(), "a", func(a *Tally) error {
				a.SetLabel(a.Label)
				return nil
			}))
		}
	}
	b.Run("postgres", func(b *testing.B) { run(b, openPostgres(b, postgresDSN(b))) })
	b.Run("sqlite", func(b *testing.B) { run(b, openSQLite(b, "default")) })
}
