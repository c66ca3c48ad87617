package engine

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The document has every route with who may use it, and nothing else; every
// documented path answers.
func TestOpenAPI_HasEveryRoute(t *testing.T) {
	var document struct {
		Paths map[string]map[string]struct {
			Security  []map[string][]string     `json:"security"`
			Responses map[string]map[string]any `json:"responses"`
		} `json:"paths"`
	}
	b := setup(t)
	e := b.start(b.guarded())
	require.Equal(t, 200, call(t, e, "GET", "/openapi.json", "", &map[string]any{}))
	require.NoError(t, json.Unmarshal(openAPIDocument, &document))
	may := map[int]access{0: anyone, 1: operators, 2: readers} // by the number of ways in
	documented, routes := map[string]access{}, map[string]access{}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			documented[strings.ToUpper(method)+" "+path] = may[len(operation.Security)]
			target := strings.NewReplacer("{message_id}", "0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", "{id}", "0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d").Replace(path)
			ask := strings.ToUpper(method)
			if path == "/api/stream" {
				ask = "HEAD" // it would not end
			}
			w := askWith(e.Handler(), ask, target, "{}", map[string]string{"Authorization": "Bearer " + token, "Content-Type": "application/json"})
			code := map[bool]int{true: 404, false: 200}[target != path]
			if method == "post" {
				code = 400
			}
			require.Equal(t, code, w.Code, path)
			require.Contains(t, slices.Collect(maps.Keys(operation.Responses)), strconv.Itoa(code), path)
		}
	}
	for _, r := range e.routes(connected) {
		if r.page() {
			continue
		}
		routes[r.method+" "+r.path] = r.may
	}
	require.Equal(t, routes, documented)
}

// page says whether a route is for people, and not of the API.
func (r route) page() bool { return strings.HasPrefix(r.path, "/assets/") || r.path == "/{$}" }
