package engine

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

const (
	maxText  = 1024 // characters of a parameter
	maxPage  = 1000
	pageSize = 100
)

// params reads the parameters in a request's URL, and collects what is wrong with
// them.
type params struct {
	values url.Values
	known  []string
	errs   []string
}

func paramsOf(r *http.Request) *params {
	p := &params{}
	var err error
	if p.values, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		p.fail("the query is not of the form name=value&name=value")
	}
	return p
}

func (p *params) fail(format string, args ...any) {
	p.errs = append(p.errs, fmt.Sprintf(format, args...))
}

// check returns all that is wrong, once every parameter was read.
func (p *params) check() error {
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		if !slices.Contains(p.known, name) {
			known := "there are " + strings.Join(p.known, ", ")
			if len(p.known) == 0 {
				known = "there are none"
			}
			p.fail("there is no parameter %q; %s", name, known)
		}
	}
	if len(p.errs) == 0 {
		return nil
	}
	return badRequest("%s", strings.Join(p.errs, "; "))
}

// all returns the values of a parameter that may stand there several times.
func (p *params) all(name, takes string) []string {
	p.known = append(p.known, name)
	for _, v := range p.values[name] {
		if err := checkText(v); err != nil {
			p.fail("%s %v: it takes %s, or leave it out", name, err, takes)
			return nil
		}
	}
	return p.values[name]
}

// one returns the value of a parameter; false if there is none.
func (p *params) one(name, takes string) (string, bool) {
	values := p.all(name, takes)
	if len(values) > 1 {
		p.fail("%s stands there %d times: it takes %s, once", name, len(values), takes)
	}
	if len(values) != 1 {
		return "", false
	}
	return values[0], true
}

func (p *params) text(name string) string {
	v, _ := p.one(name, "text")
	return v
}

func (p *params) id(name string) string {
	v, ok := p.one(name, "a UUID")
	if ok && !isUUID(v) {
		p.fail("%s is %q: it takes a UUID", name, v)
	}
	return strings.ToLower(v)
}

func (p *params) number(name string, from, to, otherwise int64) int64 {
	takes := fmt.Sprintf("a whole number from %d to %d", from, to)
	v, ok := p.one(name, takes)
	if !ok {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < from || n > to {
		p.fail("%s is %q: it takes %s", name, v, takes)
	}
	return n
}

func (p *params) yes(name string) bool {
	v, ok := p.one(name, "true")
	if ok && v != "true" {
		p.fail("%s is %q: it takes true, or leave it out", name, v)
	}
	return ok
}

func (p *params) time(name string) time.Time {
	const takes = "a time such as 2026-01-02T15:04:05Z"
	v, ok := p.one(name, takes)
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		p.fail("%s is %q: it takes %s", name, v, takes)
		return t
	}
	return bounded(t)
}

// choices are some of several words.
func choices[T ~string](p *params, name string, of []T) []T {
	var chosen []T
	for _, v := range p.all(name, oneOf(of)) {
		if !slices.Contains(of, T(v)) {
			p.fail("%s is %q: it takes %s", name, v, oneOf(of))
		}
		chosen = append(chosen, T(v))
	}
	return chosen
}

func oneOf[T ~string](of []T) string {
	words := make([]string, len(of))
	for i, w := range of {
		words[i] = string(w)
	}
	return "one of " + strings.Join(words, ", ")
}

// page is which part of a list is asked for.
func (p *params) page() (after int64, limit int) {
	after = p.number("after", 0, 1<<63-1, 0)
	return after, int(p.number("limit", 1, maxPage, pageSize))
}

// checkText says what keeps text from being a condition.
func checkText(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return errors.New("is not UTF-8 text without NUL")
	case utf8.RuneCountInString(s) > maxText:
		return fmt.Errorf("is longer than %d characters", maxText)
	}
	return nil
}

func isUUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// bounded keeps a time within what databases can hold; nothing happened beyond.
func bounded(t time.Time) time.Time {
	first, last := time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	switch {
	case t.IsZero():
		return t // none
	case t.Before(first):
		return first
	case t.After(last):
		return last
	}
	return t.UTC()
}
