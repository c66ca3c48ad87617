package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// withProtean runs a command that finds Protean and Redis.
const withProtean = "protean/with"

// hasProtean installs what is missing of Protean and its Redis, or says why it
// can't.
func hasProtean(ctx context.Context, w *world) bool {
	var said bytes.Buffer
	try := exec.CommandContext(ctx, withProtean, "bash", "-c", `python -c "import protean.server, psycopg2, redis" && redis-server --version`)
	try.Stderr = &said
	err := try.Run()
	if err != nil {
		w.log("Protean is left out: %s", cmp.Or(lastLine(said.String()), err.Error()))
	}
	return err == nil
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// protean is events per second of Protean's outbox, from PostgreSQL to Redis
// Streams, by one worker.
func (d drainage) protean(ctx context.Context, w *world) (_ map[string]float64, err error) {
	name := w.name + "_protean"
	at, err := url.Parse(w.admin)
	if err != nil {
		return nil, err
	}
	at.Scheme, at.Path = "postgresql", "/"+name // as SQLAlchemy wants it
	if err := w.administer(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, w.administer(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)"))
	}()
	redis, end, err := startRedis(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	worker, err := startProtean(ctx, at.String(), redis)
	if err != nil {
		return nil, err
	}
	defer worker.kill()
	db, err := pgx.Connect(ctx, at.String())
	if err != nil {
		return nil, err
	}
	defer db.Close(context.WithoutCancel(ctx))
	// The one row is Protean's own; its event's data and metadata are everyone's.
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO outbox SELECT (jsonb_populate_record(o, jsonb_build_object('id', gen_random_uuid(), 'message_id', o.message_id || '-' || n))).*
			FROM outbox AS o, generate_series(2, %d) AS n`, d.events),
		"VACUUM (ANALYZE) outbox", "CHECKPOINT",
	} {
		if _, err := db.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}

	begin := time.Now()
	if err := worker.work(); err != nil {
		return nil, err
	}
	var took time.Duration
	// Looking reads the table: seldom enough not to slow Protean down.
	for done := false; !done && took < peerTime; took = time.Since(begin) {
		pause(ctx, 200*time.Millisecond)
		if err := db.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'published')").Scan(&done); err != nil {
			return nil, err
		}
	}
	if err := worker.kill(); err != nil {
		return nil, err
	}
	var all, published int
	if err := db.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE status = 'published') FROM outbox").Scan(&all, &published); err != nil {
		return nil, err
	}
	said, err := redisCLI(ctx, redis, "XLEN", category)
	if err != nil {
		return nil, err
	}
	entries, err := strconv.Atoi(said)
	if err != nil {
		return nil, err
	}
	// A row is marked after it is published: the last one may not be, if it was
	// killed in between.
	if all != d.events || entries < published || entries > min(published+1, all) {
		return nil, fmt.Errorf("%d rows of %d are marked as published, and Redis has %d entries", published, d.events, entries)
	}
	return map[string]float64{"rate": float64(published) / took.Seconds()}, nil
}

// proteanWorker is a process of drain.py.
type proteanWorker struct {
	process *exec.Cmd
	in      io.Writer
	said    bytes.Buffer
	ended   chan error
}

// startProtean returns when there is one row in the outbox of the database.
func startProtean(ctx context.Context, postgresql, redis string) (*proteanWorker, error) {
	p := &proteanWorker{ended: make(chan error, 1)}
	p.process = exec.CommandContext(ctx, withProtean, "python", "protean/drain.py", postgresql, "redis://127.0.0.1:"+redis)
	p.process.Stderr = &p.said
	out, err := p.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.process.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.process.Start(); err != nil {
		return nil, err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	go func() { p.ended <- p.process.Wait() }()
	if err != nil {
		<-p.ended
		return nil, fmt.Errorf("drain.py has ended before it was ready: %s", lastLine(p.said.String()))
	}
	return p, nil
}

func (p *proteanWorker) work() error {
	_, err := io.WriteString(p.in, "go\n")
	return err
}

// kill is an error if there was nothing to kill any more.
func (p *proteanWorker) kill() error {
	err := p.process.Process.Kill()
	p.ended <- <-p.ended // the next time, too
	if err != nil {
		return fmt.Errorf("drain.py has ended: %s", lastLine(p.said.String()))
	}
	return nil
}

// startRedis returns the port and the end of a Redis that keeps nothing.
func startRedis(ctx context.Context) (port string, end func(), err error) {
	free, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	_, port, err = net.SplitHostPort(free.Addr().String())
	if err = errors.Join(err, free.Close()); err != nil {
		return "", nil, err
	}
	server := exec.CommandContext(ctx, withProtean, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := server.Start(); err != nil {
		return "", nil, err
	}
	end = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	const patience = 10 * time.Second
	for begin := time.Now(); ctx.Err() == nil && time.Since(begin) < patience; pause(ctx, 20*time.Millisecond) {
		var said string
		if said, err = redisCLI(ctx, port, "PING"); said == "PONG" {
			return port, end, nil
		}
	}
	end()
	return "", nil, fmt.Errorf("no answer of Redis within %v: %w", patience, err)
}

func redisCLI(ctx context.Context, port string, command ...string) (string, error) {
	said, err := exec.CommandContext(ctx, withProtean, append([]string{"redis-cli", "-p", port}, command...)...).Output()
	return strings.TrimSpace(string(said)), err
}
