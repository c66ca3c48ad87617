package dberr

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Task is something that a part of a program asks of the database again and again.
type Task struct {
	What  string // "claim rows"
	Who   string // of several who do it
	Aside bool   // The rest goes on without it.
}

// Trouble is a task that the database doesn't let anybody do.
type Trouble struct {
	What  string // The task: "claim rows".
	Error string // The database's words.
	Code  string // PostgreSQL's SQLSTATE, or SQLite's result code; "" if it was not the database that answered.
	Since time.Time
	Aside bool // The rest goes on without it.
}

// Subject is what the database does to the task, in front of its words.
func (t Trouble) Subject() string {
	if t.Code == "" && strings.Contains(t.Error, context.DeadlineExceeded.Error()) {
		return "the database doesn't answer in time, so it can't " + t.What
	}
	return "the database refuses to let it " + t.What
}

const (
	// doubtful is for how long after a failure a success does not end an outage: its
	// answer may be from before.
	doubtful = 200 * time.Millisecond
	// brief is how long what passes by itself is nobody's trouble.
	brief = 5 * time.Second
	// long is after which what passes by itself is told, although another line of the
	// log could tell of it.
	long = 30 * time.Second
	// tellAgain is for how long the log has no second line of a begin: a server that has no
	// connection left for some refuses and answers several times a second.
	tellAgain = 30 * time.Second
)

// Outage knows which tasks fail. It logs one line when the first begins to and one
// when none does any more; shortly after such a line, only what still fails later.
// It is safe for concurrent use.
type Outage struct {
	Log *slog.Logger
	// Told says whether another line of the log tells that the database is away. Nil:
	// there is no other, and the first failure is told at once. With it, only a failure
	// is that doesn't pass by itself, or goes on for half a minute.
	Told func() bool

	mu     sync.Mutex
	since  time.Time // of the present outage
	said   bool      // the log has a line of it
	told   time.Time // when it had the last line of a begin
	failed time.Time // last
	tasks  map[Task]Trouble
}

// Note notes how a task ended, or, without an error, that there is nothing to do.
func (o *Outage) Note(ctx context.Context, t Task, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // the process is ending
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if err == nil {
		delete(o.tasks, t)
		if len(o.tasks) == 0 && !o.since.IsZero() && now.Sub(o.failed) >= doubtful {
			if o.said {
				o.Log.Info("the database answers again", "after", now.Sub(o.since).Round(time.Millisecond))
			}
			o.since, o.said = time.Time{}, false
		}
		return
	}
	o.failed = now
	if o.tasks == nil {
		o.tasks = map[Task]Trouble{}
	}
	trouble, known := o.tasks[t]
	if !known {
		trouble = Trouble{What: t.What, Since: now, Aside: t.Aside}
	}
	trouble.Error, trouble.Code = err.Error(), CodeOf(err)
	o.tasks[t] = trouble
	if o.since.IsZero() {
		o.since = now
	}
	if !o.said && o.tell(trouble) {
		o.said, o.told = true, now
		o.Log.Warn("the database does not answer as it should; trying until it does", "what", t.What, "error", err)
	}
}

// tell says whether the log should have a line of it. The lock is held.
func (o *Outage) tell(t Trouble) bool {
	if !o.told.IsZero() && time.Since(o.told) < tellAgain {
		return false
	}
	return o.Told == nil || Lasts(t.Code) || time.Since(t.Since) >= long && !o.Told()
}

// Shows says whether people should see it: at once if it doesn't pass by itself, and
// otherwise after a while.
func Shows(t Trouble) bool { return Lasts(t.Code) || time.Since(t.Since) >= brief }

// Worst is what fails and should be seen. What stops everything comes first. It is nil if all goes well.
func (o *Outage) Worst() *Trouble {
	o.mu.Lock()
	defer o.mu.Unlock()
	var worst *Trouble
	for _, t := range o.tasks {
		if !Shows(t) {
			continue
		}
		if worst == nil || worst.Aside && !t.Aside || worst.Aside == t.Aside && t.Since.Before(worst.Since) {
			worst = &t
		}
	}
	return worst
}
