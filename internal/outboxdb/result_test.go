package outboxdb

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/waybill-go/waybill/internal/pipeline"
)

// Whichever column is the longest, each is read as what it is, and none from the driver's
// memory, which is used again.
func TestResult_KeepsEachColumn(t *testing.T) {
	t.Parallel()
	for name, lengths := range map[string][2]int{"body": {10, 50000}, "text": {50000, 10}, "short": {10, 10}, "as long": {5000, 5000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, body := strings.Repeat("t", lengths[0]), strings.Repeat("b", lengths[1])
			texts, bodies := []string{}, [][]byte{}
			a := answers{runs: []statement{{row: func(r result) error {
				texts, bodies = append(texts, r.text(0), r.text(1)), append(bodies, r.bytes(1), r.bytes(2))
				return nil
			}}}}
			next := a.of(0)
			want := []string{}
			for i := range 100 { // They lie together.
				columns := [][]byte{[]byte(fmt.Sprint(text, i)), nil, []byte(fmt.Sprint(body, i))}
				require.NoError(t, next(columns))
				clear(columns[0])
				clear(columns[2])
				want = append(want, fmt.Sprint(text, i), "")
				require.Equal(t, fmt.Sprint(body, i), string(bodies[2*i+1]))
				_ = append(bodies[2*i+1], "more of one"...) // is no part of the next
			}
			require.NoError(t, a.tell())
			require.Equal(t, want, texts)
			for i := range 100 {
				require.Equal(t, fmt.Sprint(body, i), string(bodies[2*i+1]))
				require.Empty(t, bodies[2*i])
			}
		})
	}
}

func TestResult_ReadsNumbersAndIDs(t *testing.T) {
	t.Parallel()
	id := "\x01\xa2\x15\xce\x1d\x9e\x7d\xa9\x8f\xd2\x7b\x31\xfe\x34\x43\x36"
	r := result{postgres: [][]byte{{1}, {0xff, 0xfe}, {0, 0, 1, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd}, nil, []byte(id)}}
	for i, want := range []int64{1, -2, 256, -3, 0} {
		require.Equal(t, want, r.number(i))
		require.Equal(t, want != 0, r.yes(i))
		require.Equal(t, i == 4, r.null(i))
	}
	have, err := r.uuid(5)
	require.NoError(t, err)
	require.Equal(t, "01a215ce-1d9e-7da9-8fd2-7b31fe344336", have)
	for _, i := range []int{0, 4} {
		_, err = r.uuid(i)
		require.ErrorContains(t, err, "bytes instead of 16")
	}
}

// The last statement's rows are told as they come, and those of others before them; what came
// of a try that failed before the last statement is told once.
func TestAnswers_AreToldOnceAndInTheirOrder(t *testing.T) {
	t.Parallel()
	var told []string
	tell := func(r result) error {
		told = append(told, r.text(0))
		return nil
	}
	a := answers{runs: []statement{{row: tell}, {}, {row: tell}}}
	require.Nil(t, a.of(1))
	first, last := a.of(0), a.of(2)
	column := []byte("a")
	require.NoError(t, first([][]byte{column}))
	a.earlier = nil // as it was not known to be prepared
	require.NoError(t, first([][]byte{column}))
	column[0] = 'x' // which the driver uses again
	require.Empty(t, told)
	require.NoError(t, last([][]byte{[]byte("b")}))
	require.NoError(t, last([][]byte{[]byte("c")}))
	require.NoError(t, a.tell())
	require.Equal(t, []string{"a", "b", "c"}, told)
}

// unprepared is a server's connection that forgets the last statement of each message.
type unprepared struct{ driver.Conn }

func (u unprepared) Connect(context.Context) (driver.Conn, error) { return u, nil }
func (u unprepared) Driver() driver.Driver                        { return nil }
func (unprepared) Close() error                                   { return nil }

// Pipeline implements [pipeline.Conn].
func (u unprepared) Pipeline(ctx context.Context, _ func() []pipeline.Statement, statements ...pipeline.Statement) error {
	return cmp.Or(u.Plain(ctx, statements[:len(statements)-1]...), pipeline.ErrUnprepared)
}

// Plain implements [pipeline.PlainConn].
func (unprepared) Plain(_ context.Context, statements ...pipeline.Statement) error {
	for _, s := range statements {
		if s.Row != nil {
			if err := s.Row([][]byte{[]byte(s.Query)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Where a statement isn't prepared, all are run again without: what those before it said comes
// again, and is told once.
func TestAnswers_OfATryThatWasNotPreparedAreNotTold(t *testing.T) {
	t.Parallel()
	db := bun.NewDB(sql.OpenDB(unprepared{}), pgdialect.New())
	defer func() { require.NoError(t, db.Close()) }()
	var told []string
	run := statement{row: func(r result) error {
		told = append(told, r.text(0))
		return nil
	}}
	require.NoError(t, New(db, db).do(t.Context(), reads, step{postgres: []string{"a", "b"}}, run, run))
	require.Equal(t, []string{"a", "b"}, told)
}

// After an error nobody is told anything more, and the step has it.
func TestAnswers_EndWithAnError(t *testing.T) {
	t.Parallel()
	for failing := range 2 {
		told := 0
		tell := func(result) error {
			if told++; told == failing+1 {
				return fmt.Errorf("row %d", failing)
			}
			return nil
		}
		a := answers{runs: []statement{{row: tell}, {row: tell}}}
		for i := range a.runs {
			require.NoError(t, a.of(i)([][]byte{{1}}))
			require.NoError(t, a.of(i)([][]byte{{1}}))
		}
		require.ErrorContains(t, a.tell(), fmt.Sprint("row ", failing))
		require.Equal(t, failing+1, told)
	}
}
