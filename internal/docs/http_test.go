package docs

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// openAPI is what the test reads of the engine's document.
type openAPI struct {
	Paths map[string]map[string]struct {
		Parameters  []parameter `json:"parameters"`
		RequestBody *struct {
			Content map[string]struct {
				Schema schema `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Parameters map[string]parameter `json:"parameters"`
		Schemas    map[string]schema    `json:"schemas"`
	} `json:"components"`
}

type parameter struct {
	Ref  string `json:"$ref"`
	Name string `json:"name"`
}

type schema struct {
	Ref        string                     `json:"$ref"`
	Properties map[string]json.RawMessage `json:"properties"`
}

func last(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }

// The reference of the HTTP API has every operation with every parameter, and
// none that doesn't exist; every field of every body and answer is mentioned.
func TestHTTP_SaysWhatTheOpenAPIDocumentSays(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "engine/openapi.json"))
	require.NoError(t, err)
	var document openAPI
	require.NoError(t, json.Unmarshal(text, &document))
	want := map[string][]string{}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			var names []string
			for _, p := range operation.Parameters {
				if p.Ref != "" {
					p = document.Components.Parameters[last(p.Ref)]
				}
				names = append(names, p.Name)
			}
			if operation.RequestBody != nil {
				body := document.Components.Schemas[last(operation.RequestBody.Content["application/json"].Schema.Ref)]
				names = append(names, slices.Collect(maps.Keys(body.Properties))...)
			}
			slices.Sort(names)
			want[strings.ToUpper(method)+" "+path] = names
		}
	}
	for _, filter := range []string{"RowFilter", "DeadLetterFilter"} {
		want[filter] = slices.Sorted(maps.Keys(document.Components.Schemas[filter].Properties))
	}

	page, err := os.ReadFile(filepath.Join(root, "docs/reference/http.md"))
	require.NoError(t, err)
	heading := regexp.MustCompile(`(?m)^### (.+)$`)
	got := map[string][]string{}
	sections := heading.FindAllSubmatchIndex(page, -1)
	for i, at := range sections {
		end := len(page)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		title := strings.NewReplacer("Row filter", "RowFilter", "Dead letter filter", "DeadLetterFilter").Replace(string(page[at[2]:at[3]]))
		section, _, _ := strings.Cut(string(page[at[1]:end]), "\n## ")
		var names []string
		for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\|").FindAllStringSubmatch(section, -1) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				names = append(names, name[1])
			}
		}
		slices.Sort(names)
		got[title] = names
	}
	require.Equal(t, want, got)

	for name := range fields(t, text) {
		require.Regexp(t, "[`\"]"+name+"[`\"]", string(page), "a field of a body or an answer")
	}
}

// fields are the names of all properties in a document.
func fields(t *testing.T, text []byte) map[string]bool {
	t.Helper()
	var document any
	require.NoError(t, json.Unmarshal(text, &document))
	found := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if properties, ok := v["properties"].(map[string]any); ok {
				for name := range properties {
					found[name] = true
				}
			}
			for _, member := range v {
				walk(member)
			}
		case []any:
			for _, member := range v {
				walk(member)
			}
		}
	}
	walk(document)
	require.NotEmpty(t, found)
	return found
}
