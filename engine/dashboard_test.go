package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dashboard is what matters here of Grafana's model.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Datasource  struct{ Type, UID string }
	Targets     []struct{ RefID, Expr string }
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../deploy/grafana/waybill.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// The dashboard is one that Grafana takes: panels have their own ids and places, and
// name only variables that there are.
func TestDashboard_IsValid(t *testing.T) {
	d := readDashboard(t)
	require.Equal(t, "waybill", d.UID)
	require.NotEmpty(t, d.Title)
	require.GreaterOrEqual(t, d.SchemaVersion, 39)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		require.False(t, variables[v.Name], v.Name)
		variables[v.Name] = true
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		require.NotEmpty(t, p.Title)
		require.False(t, ids[p.ID], "%s: its id stands twice", p.Title)
		ids[p.ID] = true
		at := p.GridPos
		require.Positive(t, at.W*at.H, p.Title)
		require.LessOrEqual(t, at.X+at.W, 24, p.Title)
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				require.Empty(t, cells[[2]int{x, y}], "%s is in its place", p.Title)
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		refs := map[string]bool{}
		for _, q := range p.Targets {
			require.False(t, refs[q.RefID], p.Title)
			refs[q.RefID] = true
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				require.True(t, variables[m[1]], "%s asks for %s", p.Title, m[0])
			}
		}
	}
}

// Every query of the dashboard finds something in what an engine shows: it can be
// read, and its metrics and labels exist.
func TestDashboard_EveryQueryFindsSomething(t *testing.T) {
	t.Parallel()
	b, e := complete(t)
	b.sell(3)
	scraped(t, e, map[string]float64{`waybill_outbox_published_total{provider="default",target="partner"}`: 3})
	text, _ := scrape(t, e)
	var tests strings.Builder
	tests.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err, line)
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		fmt.Fprintf(&tests, "      - {series: '%s{job=\"test\",instance=\"a\",%s}', values: '%sx20'}\n", metric, labels, strconv.FormatFloat(number, 'f', -1, 64))
	}
	tests.WriteString("    promql_expr_test:\n")
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			if strings.HasPrefix(q.Expr, "ALERTS{") {
				continue // Prometheus' own, while one fires
			}
			expr := regexp.MustCompile(`\$(job|instance|provider|target|subscription)\b`).ReplaceAllString(strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"), ".*")
			// What divides by a rate finds nothing while nothing happens.
			expr = strings.ReplaceAll(expr, "> 0)", ">= 0)")
			require.NotContains(t, expr, "'")
			fmt.Fprintf(&tests, "      - {expr: 'count(%s) > bool 0', eval_time: 20m, exp_samples: [{labels: '{}', value: 1}]}\n", expr)
		}
	}
	for _, v := range readDashboard(t).Templating.List {
		if m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition); v.Type == "query" {
			require.NotNil(t, m, v.Definition)
			fmt.Fprintf(&tests, "      - {expr: 'count(count by (%s) (%s)) > bool 0', eval_time: 20m, exp_samples: [{labels: '{}', value: 1}]}\n",
				m[2], regexp.MustCompile(`\$\w+`).ReplaceAllString(m[1], ".*"))
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	require.NoError(t, os.WriteFile(file, []byte(tests.String()), 0o600))
	promtool(t, "", "test", "rules", file)
}
