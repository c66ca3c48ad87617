package historyverbs_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/historydb"
)

// PostgreSQL hasn't counted tables that are new, and takes a history that has just begun for
// small. Who reads all of it for each row of the outbox is minutes at it beside writers that have
// it grow, with the lock of the import: a page looks up each of its rows by index.
func TestImport_DoesNotReadTheHistoryForEachRow(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		if w.p.DB().Dialect().Name() == dialect.SQLite {
			return // It goes by indexes, whatever it has counted.
		}
		const events = 200
		var texts []string
		for i := range events {
			texts = append(texts, strconv.Itoa(i))
		}
		b := newBook("b")
		w.note(b, texts...)
		w.keeps()
		w.note(b, "kept")
		// Commands, which aren't imported: they make the outbox dear to read.
		w.exec("INSERT INTO outbox_messages (lane, part, id, message_id, stream, stream_category, partition_key, message_type, aggregate_type, aggregate_id, aggregate_version, payload, content_type, occurred_at)" +
			" SELECT lane, part, gen_random_uuid(), gen_random_uuid(), stream, stream_category, partition_key, message_type, '', aggregate_id, aggregate_version, payload, content_type, occurred_at" +
			" FROM outbox_messages, generate_series(1, 200)")

		scans := int64(-1)
		im := historydb.Import{
			Context: "library", Own: bun.SafeQuery("b.lane = (SELECT id FROM outbox_lanes WHERE target = 'default')"),
			Hold: func(ctx context.Context, tx bun.Tx) error {
				return tx.NewRaw("SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'history'::regclass").Scan(ctx, &scans)
			},
			Step: func(ctx context.Context, batch func(bun.Tx) (int64, error)) error {
				return w.p.DB().RunInTx(ctx, nil, func(_ context.Context, tx bun.Tx) error {
					_, err := batch(tx)
					return err
				})
			},
		}
		found, err := im.Count(t.Context(), w.p.Reader())
		require.NoError(t, err)
		require.EqualValues(t, events, found.Events)
		done, err := im.Run(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, events, done.Events)
		require.Zero(t, scans, "of the whole history in one page")
		require.True(t, slices.IsSorted(positions(w)))
	})
}

func positions(w *world) (all []int64) {
	for _, e := range w.read() {
		all = append(all, e.Position)
	}
	return all
}
