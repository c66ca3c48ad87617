package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"
)

// redacted stands for a value that is not shown.
const redacted = "[redacted]"

// redaction are the names, in small letters, of fields whose values are not shown.
type redaction map[string]bool

func newRedaction(names []string) redaction {
	r := redaction{}
	for _, name := range names {
		r[strings.ToLower(name)] = true
	}
	return r
}

// value replaces values of such fields, at any depth.
func (r redaction) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if v[name] = r.value(member); r[strings.ToLower(name)] {
				v[name] = redacted
			}
		}
	case []any:
		for i, member := range v {
			v[i] = r.value(member)
		}
	}
	return v
}

func (r redaction) headers(headers map[string]string) map[string]string {
	shown := make(map[string]string, len(headers))
	for name, value := range headers {
		if shown[name] = value; r[strings.ToLower(name)] {
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
	case !e.hasToken(r):
		return "payloads are shown to those only who send the server's token as Authorization: Bearer …"
	}
	return ""
}

// payload is what is shown of a body, or why nothing is.
func (e *Engine) payload(r *http.Request, body []byte) (payload any, hidden string) {
	if hidden = e.hidden(r); hidden != "" || body == nil {
		return nil, hidden
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	err := d.Decode(&payload)
	if _, more := d.Token(); err == nil && errors.Is(more, io.EOF) {
		return e.redaction.value(payload), ""
	}
	switch {
	case len(e.redaction) > 0:
		return nil, "it is not JSON, so that server.redact can't be applied"
	case !utf8.Valid(body):
		return nil, "it is no text"
	}
	return string(body), ""
}
