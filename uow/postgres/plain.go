package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/pipeline"
)

var _ pipeline.PlainConn = (*conn)(nil)

// Plain implements pipeline.PlainConn. A statement without a name lives until the
// next one, so that it needs nothing of the connection behind a pooler.
func (c *conn) Plain(ctx context.Context, statements ...pipeline.Statement) error {
	requests, err := c.requests(nil, statements)
	if err != nil {
		return err
	}
	pipe := c.Conn.Conn().PgConn().StartPipeline(ctx)
	pipe.SendQueryParams("BEGIN ISOLATION LEVEL READ COMMITTED", nil, nil, nil, nil)
	for _, r := range requests {
		pipe.SendQueryParams(r.query, r.values, nil, r.formats, binary)
	}
	pipe.SendQueryParams("COMMIT", nil, nil, nil, nil)
	err = pipe.Sync()
	var reading error
	for answered := -1; err == nil; answered++ { // the first answer is BEGIN's
		var results any
		if results, err = pipe.GetResults(); err != nil {
			break
		}
		reader, ok := results.(*pgconn.ResultReader)
		if !ok {
			break // the end of the pipeline
		}
		if answered >= 0 && answered < len(requests) && requests[answered].row != nil {
			reading = cmp.Or(reading, each(reader, requests[answered].row))
		}
		_, err = reader.Close()
	}
	closing := pipe.Close()
	return cmp.Or(err, closing, reading)
}

// each gives row every row of a result until one fails.
func each(results *pgconn.ResultReader, row func([][]byte) error) (err error) {
	for results.NextRow() {
		if err == nil {
			err = row(results.Values())
		}
	}
	return err
}
