package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/uow"
)

// preparable is the query of a statement whose text is always the same, but for
// its values. To parse and plan it costs PostgreSQL more than to run it.
type preparable interface {
	// Prepared returns the query with $1, $2 … for its values. Each of them is a
	// string, which has the value as text, a []byte, which is a bytea, or nil. An
	// empty query asks to be sent by AppendQuery this time.
	Prepared() (query string, values []any, err error)
}

// request is one statement of a pipeline.
type request struct {
	name, query string // Without a name it is not prepared.
	values      [][]byte
	formats     []int16
	row         func([][]byte) error // of its result; may be nil
}

// binary is the format of all columns of a result.
var binary = []int16{pgx.BinaryFormatCode}

// pipeline turns statements into requests; none if one of them can't be prepared.
func (p *provider) pipeline(statements []uow.Statement) ([]request, error) {
	if p.pause.on() {
		return nil, nil
	}
	requests := make([]request, 0, len(statements))
	for i, s := range statements {
		query, ok := s.Query.(preparable)
		if !ok {
			return nil, nil
		}
		text, values, err := query.Prepared()
		switch {
		case err != nil:
			return nil, fmt.Errorf("postgres: statement %d: %w", i, err)
		case text == "":
			return nil, nil
		case s.Rows >= 0 && s.Else == nil:
			return nil, fmt.Errorf("postgres: statement %d demands %d rows and has no Else", i, s.Rows)
		case s.Rows >= 0:
			values = append(values, missed+strconv.Itoa(i)+" ")
		}
		r, err := p.prepared(text, s.Rows, len(values)).with(values)
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	return requests, nil
}

// prepared gives a query its guard (see message) and its name. The name is made
// of the text: behind a pooler another program's statements are met, and must
// never be taken for one's own.
func (p *provider) prepared(text string, rows int64, values int) request {
	key := textKey{text, rows}
	if known, ok := p.texts.get(key); ok {
		return known
	}
	query := text
	if rows >= 0 {
		query = fmt.Sprintf("WITH w AS (\n%s\nRETURNING 1) SELECT CASE count(*) WHEN %d THEN 0 ELSE ($%d::text || count(*))::int END FROM w", text, rows, values)
	}
	sum := sha256.Sum256([]byte(query))
	r := request{name: "waybill_" + hex.EncodeToString(sum[:16]), query: query}
	p.texts.put(key, r)
	return r
}

func (r request) with(values []any) (request, error) {
	r.values, r.formats = make([][]byte, len(values)), make([]int16, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case nil:
		case string:
			if strings.IndexByte(v, 0) >= 0 {
				return r, errNUL
			}
			r.values[i] = []byte(v)
		case []byte:
			if v == nil {
				v = []byte{} // nil would be NULL
			}
			r.values[i], r.formats[i] = v, pgx.BinaryFormatCode
		default:
			return r, fmt.Errorf("postgres: a value is a %T, and not a string, bytes or nil", v)
		}
	}
	return r, nil
}

// runPipeline sends requests in one trip and as one transaction, which commits
// behind the last of them. What the connection doesn't know yet is prepared on
// the way, and what it hasn't used for longest is closed when there is too much.
// answered is as in run.
func runPipeline(ctx context.Context, conn *pgx.Conn, requests []request) (answered int, err error) {
	known := knownTo(conn)
	fresh, surplus := known.use(requests)
	pipe := conn.PgConn().StartPipeline(ctx)
	for _, name := range surplus {
		pipe.SendDeallocate(name)
	}
	var preparing []string
	for _, r := range requests {
		if r.name == "" {
			pipe.SendQueryParams(r.query, r.values, nil, r.formats, binary)
			continue
		}
		if fresh[r.name] {
			delete(fresh, r.name) // for the next of the same
			// The server may have it from a time that this connection doesn't remember.
			pipe.SendDeallocate(r.name)
			pipe.SendPrepare(r.name, r.query, nil)
			preparing = append(preparing, r.name)
		}
		pipe.SendQueryPrepared(r.name, r.values, r.formats, binary)
	}
	err = pipe.Sync()
	prepared := 0
	var reading error
	for err == nil {
		var results any
		results, err = pipe.GetResults()
		switch results := results.(type) {
		case *pgconn.StatementDescription:
			prepared++
			continue
		case *pgconn.CloseComplete:
			continue
		case *pgconn.ResultReader:
			if row := requests[answered].row; row != nil {
				for results.NextRow() {
					if reading == nil {
						reading = row(results.Values())
					}
				}
			}
			if _, err = results.Close(); err == nil {
				answered++
			}
			continue
		case *pgconn.PipelineSync:
			continue
		}
		break
	}
	// A statement stays prepared even if its transaction fails, and behind the
	// failure none is prepared.
	for _, name := range preparing[prepared:] {
		known.forget(name)
	}
	closing := pipe.Close()
	return answered, cmp.Or(err, closing, reading)
}

// maxTexts bounds the memory of queries and their names: an application may make up
// texts without end.
const maxTexts = 1024

type textKey struct {
	text string
	rows int64
}

// texts remembers what prepared made of a text.
type texts struct {
	mu  sync.RWMutex
	all map[textKey]request
}

func (t *texts) get(key textKey) (request, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.all[key]
	return r, ok
}

// put begins anew when there are too many: to make one again costs microseconds.
func (t *texts) put(key textKey, r request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil || len(t.all) >= maxTexts {
		t.all = map[textKey]request{}
	}
	t.all[key] = r
}
