package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
)

const (
	maxBody  = 64 << 10 // bytes of the body of a request
	maxDepth = 16       // of lists and objects in each other; those that have a meaning need 3
	maxLimit = 1<<31 - 1
)

// checkLimit is for what a change may do at most.
func checkLimit(n int64) error {
	if n > maxLimit {
		return badRequest("limit is %d: it takes a whole number up to %d", n, maxLimit)
	}
	return nil
}

// decode reads the body of a request into a struct. Nothing in it may be unknown,
// one of those that are not for here, or empty: in a filter that would mean
// everything.
func decode(r *http.Request, into any, notHere ...string) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &problem{http.StatusUnsupportedMediaType, "send the body as Content-Type: application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
			return &problem{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", maxBody)}
		}
		return badRequest("the body did not arrive whole")
	}
	if tooDeep(body) {
		return badRequest("the body has more than %d lists and objects in each other", maxDepth)
	}
	if !json.Valid(body) {
		return badRequest("the body is not JSON")
	}
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&members); err != nil || members == nil {
		return badRequest("the body is not a JSON object")
	}
	for _, name := range notHere {
		if _, has := members[name]; has {
			return badRequest("the body can't be read: unknown field %q", name)
		}
	}
	checked, err := checkValue("", members)
	if err != nil {
		return err
	}
	if body, err = json.Marshal(checked); err != nil {
		return err
	}
	d = json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return badRequest("%s can't be a %s", wrong.Field, wrong.Value)
		}
		return badRequest("the body can't be read: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// tooDeep looks before anything is read that takes a time for each depth.
func tooDeep(body []byte) bool {
	depth, text := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case text && c == '\\':
			i++ // whatever stands behind it is text
		case c == '"':
			text = !text
		case text:
		case c == '[', c == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case c == ']', c == '}':
			depth--
		}
	}
	return false
}

// checkValue refuses what would stand for "not given", and returns the value with
// whole numbers written as such: to JSON, 1.0 is one.
func checkValue(path string, value any) (any, error) {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			checked, err := checkValue(strings.TrimPrefix(path+"."+name, "."), member)
			if err != nil {
				return nil, err
			}
			v[name] = checked
		}
	case []any:
		if len(v) == 0 {
			return nil, badRequest("%s is empty: leave it out", path)
		}
		if len(v) > maxPage {
			return nil, badRequest("%s has %d values, and may have %d", path, len(v), maxPage)
		}
		for i, member := range v {
			checked, err := checkValue(fmt.Sprintf("%s[%d]", path, i), member)
			if err != nil {
				return nil, err
			}
			v[i] = checked
		}
	case string:
		if err := checkText(v); err != nil {
			return nil, badRequest("%s %w", path, err)
		}
	case bool:
		if !v && path != "dry_run" {
			return nil, badRequest("%s is false: leave it out", path)
		}
	case json.Number:
		f, err := v.Float64()
		if err != nil || f <= 0 {
			return nil, badRequest("%s is %s: give a number above 0, or leave it out", path, v)
		}
		if strings.ContainsAny(v.String(), ".eE") && f == math.Trunc(f) && f < 1<<63 {
			return int64(f), nil
		}
	case nil:
		return nil, badRequest("%s is null: leave it out", path)
	}
	return value, nil
}
