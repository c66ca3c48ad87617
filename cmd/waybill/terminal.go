package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/waybill-go/waybill/internal/jsondepth"
	"github.com/waybill-go/waybill/internal/operate"
)

// maxRate is more rows per second than anybody has; JSON has no infinity.
const maxRate = 1e9

// deed is what all commands have in common that change what others wait for.
type deed struct {
	DryRun bool `help:"Change nothing; show what would change."`
	Yes    bool `short:"y" help:"Don't ask."`
	onRecord
}

func (d deed) check() error { return d.onRecord.check(d.DryRun) }

// onRecord is who the record says has done something.
type onRecord struct {
	Actor *string `placeholder:"NAME" help:"Who is doing this, for the record. Defaults to $USER, or else to the user of the process, by name or as uid@host."`
}

func (o onRecord) check(dryRun bool) error {
	if o.actor() == "" && !dryRun {
		return &usageError{errors.New("who asks? Give --actor, for the record: it is empty")}
	}
	if problem := operate.ActorProblem(o.actor()); problem != "" && !dryRun {
		return &usageError{errors.New("who asks? --actor, or else $USER, " + problem)}
	}
	return nil
}

func (o onRecord) actor() string {
	if o.Actor != nil {
		return *o.Actor
	}
	return cmp.Or(os.Getenv("USER"), processUser(user.Current))
}

// processUser is for containers, which have no $USER and often no name for their
// uid either.
func processUser(current func() (*user.User, error)) string {
	if u, err := current(); err == nil && u.Username != "" {
		return u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return strconv.Itoa(os.Getuid()) + "@" + host
}

// moment is a time, or how long ago.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil || at.UTC().Year() < 1 { // PostgreSQL has no year 0
		return fmt.Errorf("%q is neither a time as in 2026-01-02T15:04:05Z nor how long ago, as in 90m", text)
	}
	m.Time = at
	return nil
}

// confirm asks, if somebody is there to be asked.
func confirm(ctx context.Context, stderr news, question string) error {
	nobody := &usageError{errors.New("can't ask for confirmation without a terminal: check with --dry-run, then add --yes; nothing was changed")}
	if info, err := os.Stdin.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nobody
	}
	fmt.Fprintf(stderr, "%s [y/N] ", question)
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answers <- line
	}()
	select {
	case line := <-answers:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
		if line == "" { // /dev/null looks like a terminal
			return nobody
		}
	case <-ctx.Done():
	}
	return errors.New("nothing was changed")
}

// grid is a table whose first column, the provider, is there if there are several.
type grid struct {
	w       *tabwriter.Writer
	out     out
	heading []string
	several bool
	rows    int
}

func newTable(stdout out, providers int, heading ...string) *grid {
	return &grid{w: tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0), out: stdout, heading: heading, several: providers > 1}
}

func (t *grid) row(provider string, cells ...string) {
	if t.rows == 0 {
		t.write("PROVIDER", t.heading)
	}
	t.rows++
	t.write(provider, cells)
}

func (t *grid) write(provider string, cells []string) {
	if t.several {
		cells = slices.Insert(slices.Clone(cells), 0, provider)
	}
	for i, cell := range cells {
		cells[i] = cmp.Or(strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(cell)), "-")
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// flush ends the table, or says that there is nothing, if that is known.
func (t *grid) flush(err error, nothing string) error {
	if t.rows == 0 && err == nil {
		fmt.Fprintln(t.out, nothing)
	}
	return errors.Join(err, t.w.Flush())
}

// goOn says of each database that has more how to get it. next is what to say first, and the
// --after of the next page.
func goOn[P any](stderr news, all map[string]P, next func(P) (said string, after any, more bool)) {
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		said, after, more := next(all[provider])
		if !more {
			continue
		}
		of := ""
		if len(all) > 1 {
			of = " --provider " + provider
		}
		fmt.Fprintf(stderr, "%s; continue with%s --after %v\n", said, of, after)
	}
}

// checkLimit refuses a page that has nothing, or too much.
func checkLimit(limit, most int) error {
	if limit < 1 || limit > most {
		return &usageError{fmt.Errorf("--limit is %d: from 1 to %d", limit, most)}
	}
	return nil
}

// number is how many of something there are.
func number(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// fields writes a name and a value to a line, or to several if the value has several.
func fields(w io.Writer, width int) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-*s%s\n", width, name, strings.ReplaceAll(printable(fmt.Sprintf(format, args...)), "\n", "\n"+strings.Repeat(" ", width)))
	}
}

// since is how long ago t was.
func since(t time.Time) string { return glance(time.Since(t)) }

// glance is a duration to be read at a glance.
func glance(d time.Duration) string {
	if days := int(d.Hours() / 24); days > 2 {
		return fmt.Sprintf("%d days", days)
	}
	return max(d, 0).Round(time.Second).String()
}

// lastOf is when the last of n is due at a rate per second, from the first on.
func lastOf(n int64, rate float64) time.Duration {
	return operate.Bounds{Rate: rate}.Delay(n - 1).Round(time.Second)
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// hexHead is how much is shown of a body that is no text.
const hexHead = 256

// printBody shows what a message carries, JSON indented; about comes after its size.
func printBody(w io.Writer, field func(name, format string, args ...any), title, about string, body []byte) {
	var text bytes.Buffer
	// What is nested deep would be indented by the square of that.
	if jsondepth.Exceeds(body, jsondepth.Limit) || json.Indent(&text, body, "", "  ") != nil {
		text = *bytes.NewBuffer(body)
	}
	if !isText(text.Bytes()) {
		head := body[:min(hexHead, len(body))]
		field(title, "%d bytes, no text; the first %d:", len(body), len(head))
		fmt.Fprintf(w, "%s", hex.Dump(head))
		return
	}
	field(title, "%d bytes%s", len(body), about)
	fmt.Fprintf(w, "%s\n", strings.TrimRight(text.String(), "\n"))
}

func isText(b []byte) bool {
	return utf8.Valid(b) && bytes.IndexFunc(b, func(r rune) bool { return r != printed(r) }) < 0
}

// printable is text that does a terminal no harm.
func printable(text string) string { return strings.Map(printed, text) }

func printed(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return '\uFFFD'
}

// isTerminal says whether somebody reads what is written there, as it comes.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress is a line on a terminal that is written again and again. Without a
// terminal it says nothing.
type progress struct {
	w    io.Writer // nil: nobody reads it
	last time.Time
}

const progressEvery = 100 * time.Millisecond

func newProgress(stderr news) *progress {
	if !isTerminal(stderr.Writer) {
		return &progress{}
	}
	return &progress{w: stderr}
}

func (p *progress) tell(format string, args ...any) {
	if p.w == nil || time.Since(p.last) < progressEvery {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
}

// clear leaves the line to what is written next.
func (p *progress) clear() {
	if p.w != nil && !p.last.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.last = time.Time{}
	}
}
