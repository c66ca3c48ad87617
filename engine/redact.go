package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/waybill-go/waybill/internal/jsondepth"
)

// redacted stands for a value that is not shown.
const redacted = "[redacted]"

// redaction are the ends of paths, name by name, of fields whose values are not
// shown.
type redaction [][]string

func newRedaction(names []string) redaction {
	var r redaction
	for _, name := range names {
		r = append(r, pathOf(name))
	}
	return r
}

// pathOf are the names of a path, in which neither capitals nor "-" and "_" make
// a difference: card_number is CardNumber, too.
func pathOf(name string) []string {
	return strings.Split(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name)), ".")
}

// has says whether the field at a path is one of them.
func (r redaction) has(path []string) bool {
	return slices.ContainsFunc(r, func(end []string) bool {
		return len(end) <= len(path) && slices.Equal(end, path[len(path)-len(end):])
	})
}

// value replaces values of such fields, at any depth.
func (r redaction) value(v any) any { return r.below(nil, v) }

// below is value for what stands at a path. An item of a list has its list's.
func (r redaction) below(path []string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			at := append(path, pathOf(name)...)
			if r.has(at) {
				v[name] = redacted
				continue
			}
			v[name] = r.below(at, member)
		}
	case []any:
		for i, member := range v {
			v[i] = r.below(path, member)
		}
	}
	return v
}

func (r redaction) headers(headers map[string]string) map[string]string {
	shown := make(map[string]string, len(headers))
	for name, value := range headers {
		if shown[name] = value; r.has(pathOf(name)) {
			shown[name] = redacted
		}
	}
	return shown
}

// hidden says why payloads and headers are not shown to whom a request is from;
// "": they are.
func (e *Engine) hidden(r *http.Request) string {
	switch {
	case !e.cfg.Server.ShowPayloads:
		return "payloads are not shown; server.show_payloads turns that on"
	case !visitorOf(r).content():
		return "payloads are shown to those only who send a token of role operate as Authorization: Bearer …"
	}
	return ""
}

// payload is what is shown of a body, or why nothing is.
func (e *Engine) payload(r *http.Request, body []byte) (payload any, hidden string) {
	if hidden = e.hidden(r); hidden != "" || body == nil {
		return nil, hidden
	}
	// Indented, what is nested deep is larger by the square of that.
	deep := jsondepth.Exceeds(body, jsondepth.Limit)
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if !deep && d.Decode(&payload) == nil {
		if _, more := d.Token(); errors.Is(more, io.EOF) {
			return e.redaction.value(payload), ""
		}
	}
	switch {
	case len(e.redaction) > 0 && deep:
		return nil, "it is nested too deep, so that server.redact can't be applied"
	case len(e.redaction) > 0:
		return nil, "it is not JSON, so that server.redact can't be applied"
	case !utf8.Valid(body):
		return nil, "it is no text"
	}
	return string(body), ""
}
