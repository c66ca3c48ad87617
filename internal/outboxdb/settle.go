package outboxdb

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/relay"
)

var (
	settleStep    = load("settle")
	publishedStep = load("settle_published")
	backStep      = load("settle_back")
)

// Settle deletes the token and, only if it was there, does what w says: all or
// nothing. It locks in the order of seq.
func (s *Store) Settle(ctx context.Context, w relay.Settlement) (known bool, err error) {
	what, values := settleStep, []any{int64(w.Member), w.N}
	others := len(w.Failed)+len(w.Abandoned)+len(w.Lost) > 0
	switch {
	case len(w.Published) == 0 && !others:
		what = backStep
	case !others:
		what, values = publishedStep, append(values, s.published(w)...)
	default:
		values = append(append(append(append(values, s.published(w)...), failed(w.Failed)...), refs(w.Lost)...), abandoned(w.Abandoned)...)
	}
	token := statement{values: values, must: true, row: func(result) error { known = true; return nil }}
	runs := []statement{token}
	if s.sqlite() {
		for range len(what.sqlite) - 1 {
			runs = append(runs, statement{values: values})
		}
	}
	if err := s.do(ctx, lasting(w.Durable), what, runs...); err != nil {
		return false, err
	}
	return known, nil
}

func (s *Store) published(w relay.Settlement) []any {
	return append(append([]any{int64(w.Lane)}, refs(w.Published)...), w.Delete)
}

func refs(rows []relay.RowRef) []any {
	parts, seqs, keys := bySeq(rows)
	return []any{parts, seqs, keys}
}

func failed(all []relay.Failure) []any {
	all = slices.SortedFunc(slices.Values(all), func(a, b relay.Failure) int { return cmp.Compare(a.Seq, b.Seq) })
	n := len(all)
	parts, seqs, keys, attempts, dueIn := make(pairs, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	held, classes, errors := make([]bool, n), make([]string, n), make([]string, n)
	for i, f := range all {
		parts[i], seqs[i], keys[i], attempts[i], dueIn[i] = [2]int64{int64(f.Part), f.Seq}, f.Seq, f.Key, small(f.Attempts), milliseconds(f.DueIn)
		held[i], classes[i], errors[i] = f.Held, f.Class, dberr.Clip(f.Error)
	}
	return []any{parts, seqs, keys, attempts, dueIn, held, classes, errors}
}

func abandoned(all []relay.Abandonment) []any {
	all = slices.SortedFunc(slices.Values(all), func(a, b relay.Abandonment) int { return cmp.Compare(a.Seq, b.Seq) })
	n := len(all)
	parts, seqs, keys, attempts, losses := make(pairs, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	maybe, classes, errors := make([]bool, n), make([]string, n), make([]string, n)
	for i, a := range all {
		parts[i], seqs[i], keys[i], attempts[i], losses[i] = [2]int64{int64(a.Part), a.Seq}, a.Seq, a.Key, small(a.Attempts), small(a.Losses)
		maybe[i], classes[i], errors[i] = a.MaybeDelivered, a.Class, dberr.Clip(a.Error)
	}
	return []any{parts, seqs, keys, attempts, losses, maybe, classes, errors}
}

// small is what a smallint has room for.
func small(n int) int64 { return int64(min(max(n, 0), math.MaxInt16)) }

// milliseconds is a duration that both databases can add to the present.
func milliseconds(d time.Duration) int64 {
	const most = 100 * 365 * 24 * time.Hour
	return min(max(d, 0), most).Milliseconds()
}
