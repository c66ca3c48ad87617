package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/uow"
)

// pipelined sends statements on one connection.
func pipelined(ctx context.Context, p uow.Provider, then func() []pipeline.Statement, statements ...pipeline.Statement) error {
	conn, err := p.DB().Conn(ctx)
	if err != nil {
		return err
	}
	return errors.Join(conn.Raw(func(dc any) error {
		return dc.(pipeline.Conn).Pipeline(ctx, then, statements...)
	}), conn.Close())
}

// What follows in a second trip depends on the first, and both are one transaction,
// which holds nothing when it has failed anywhere.
func TestPipeline_TwoTrips(t *testing.T) {
	p, x := openThrough(t, onOne)
	things(t, p)
	other := beside(t, p)
	insert := func(id string) pipeline.Statement {
		return pipeline.Statement{Query: "INSERT INTO things (id, n) VALUES ($1, 0)", Values: []any{id}}
	}
	var found []string
	lock := pipeline.Statement{Query: "SELECT id FROM things WHERE id = $1 FOR UPDATE", Values: []any{"a"}, Row: func(columns [][]byte) error {
		found = append(found, string(columns[0]))
		return nil
	}}
	require.NoError(t, pipelined(t.Context(), p, nil, insert("a")))
	free := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := other.DB().ExecContext(ctx, "UPDATE things SET n = n + 1 WHERE id = 'a'")
		require.NoError(t, err)
	}

	before := x.Trips()
	require.NoError(t, pipelined(t.Context(), p, func() []pipeline.Statement {
		require.Equal(t, []string{"a"}, found, "it was read before")
		return []pipeline.Statement{insert("b")}
	}, lock))
	require.EqualValues(t, 2, x.Trips()-before)
	require.Error(t, pipelined(t.Context(), p, func() []pipeline.Statement { return []pipeline.Statement{insert("c"), insert("a")} }, lock))
	free()
	require.NoError(t, pipelined(t.Context(), p, func() []pipeline.Statement { return nil }, insert("d"), lock))
	free()

	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, pipelined(ctx, p, func() []pipeline.Statement {
		cancel()
		return []pipeline.Statement{insert("e")}
	}, insert("f"), lock), context.Canceled)
	free()
	require.Equal(t, []string{"a", "b", "d"}, ids(t, p))
}
