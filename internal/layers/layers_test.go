// Package layers_test holds which package may link which: the direction of imports, and what a program that
// names one package gets with it. It asks the go command, so indirect imports count too.
package layers_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/waybill-go/waybill"

// rank orders the module's top-level directories: a package links lower ones and its own directory, never a
// neighbour of its rank.
var rank = map[string]int{
	"domain": 0, "broker": 0,
	"contract": 1, "outbox": 1,
	"uow":     2,
	"history": 3, "repository": 3, "subscription": 3,
	"command": 4, "process": 4, "projection": 4,
	"engine": 5, "web": 5,
	"cmd": 6, "examples": 6, "waybilltest": 6,
}

// Prefixes of import paths.
var (
	drivers    = []string{"github.com/jackc/pgx", "modernc.org/sqlite", "github.com/lib/pq", "github.com/mattn/go-sqlite3"}
	adapters   = own("broker/kafka", "broker/nats", "broker/watermill", "broker/memory", "uow/postgres", "uow/sqlite")
	nats       = []string{"github.com/nats-io"}
	natsServer = []string{"github.com/nats-io/nats-server"}
	kafka      = []string{"github.com/IBM/sarama", "github.com/twmb/franz-go", "github.com/ThreeDotsLabs/watermill-kafka"}
	watermill  = []string{"github.com/ThreeDotsLabs"}
	testLibs   = []string{"github.com/stretchr/testify", "go.uber.org/goleak", "github.com/cloudevents", "testing"}
)

func own(dirs ...string) []string {
	paths := make([]string, len(dirs))
	for i, dir := range dirs {
		paths[i] = path.Join(module, dir)
	}
	return paths
}

// packages answers, for every package of the module, what its binary would contain: all but tests.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Deps", module+"/...")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	deps := map[string][]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Deps       []string
		}
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		deps[p.ImportPath] = p.Deps
	}
	return deps
}

// within says whether pkg is one of the trees or lies in one.
func within(pkg string, trees []string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return pkg == tree || strings.HasPrefix(pkg, tree+"/")
	})
}

func isOwn(pkg string) bool { return within(pkg, []string{module}) }

func isStandard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".")
}

// isSuite says whether pkg exists for tests: conformance suites and helpers, named like broker/brokertest.
func isSuite(pkg string) bool { return strings.HasSuffix(pkg, "test") }

// top is the top-level directory of one of the module's packages.
func top(pkg string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(pkg, module+"/"), "/")
	return dir
}

// S4-23: the domain links nothing that could change a row of the outbox; operators
// do that, through outboxdb.Store.
func TestImportsPointOneWay(t *testing.T) {
	for pkg, deps := range packages(t) {
		dir := top(pkg)
		if dir == "internal" { // has no place of its own: its users' deps contain it
			continue
		}
		own, known := rank[dir]
		require.True(t, known, "%s: give the directory %s a rank in this test", pkg, dir)
		for _, dep := range deps {
			if !isOwn(dep) || top(dep) == dir || top(dep) == "internal" {
				continue
			}
			require.Less(t, rank[top(dep)], own, "%s links %s", pkg, dep)
		}
	}
}

func TestNobodyLinksWhatTheyDoNotName(t *testing.T) {
	all := packages(t)
	for _, c := range []struct {
		pkg    string
		denied [][]string
	}{
		{"outbox", [][]string{drivers, adapters}},
		{"uow", [][]string{drivers, adapters}},
		{"repository", [][]string{drivers, adapters}},
		{"history", [][]string{drivers, adapters}},
		{"subscription", [][]string{drivers, adapters}},
		{"subscription/dedup", [][]string{drivers, adapters, nats, kafka, watermill, own("domain", "outbox", "uow")}},
		{"subscription/dedup/natskv", [][]string{drivers, adapters, natsServer, kafka, watermill}},
		{"web", [][]string{drivers, adapters, nats, kafka, watermill, own("engine")}},
		{"command", [][]string{drivers, adapters, nats, kafka, watermill}},
		{"projection", [][]string{drivers, adapters, nats, kafka, watermill}},
		{"engine", [][]string{drivers, adapters, nats, kafka, watermill}},
		{"engine/config", [][]string{drivers, adapters, nats, kafka, watermill}},
		{"uow/postgres", [][]string{{"modernc.org/sqlite"}, nats, kafka, watermill}},
		{"uow/sqlite", [][]string{{"github.com/jackc/pgx"}, nats, kafka, watermill}},
		{"broker/kafka", [][]string{nats, drivers, watermill, {"github.com/IBM/sarama", "github.com/twmb/franz-go/pkg/kfake"}}},
		{"broker/nats", [][]string{natsServer, kafka, watermill, drivers}},
		{"broker/nats/embedded", [][]string{kafka, watermill, drivers}},
		{"broker/watermill", [][]string{nats, kafka, drivers}},
		{"examples/partner", [][]string{{module}}},
	} {
		t.Run(c.pkg, func(t *testing.T) {
			deps, ok := all[path.Join(module, c.pkg)]
			require.True(t, ok, "no such package")
			for _, dep := range deps {
				require.False(t, within(dep, slices.Concat(c.denied...)), "links %s", dep)
			}
		})
	}
}

// Watermill's Kafka, and sarama with it, is for those who import broker/watermill/kafka,
// which is a module of its own.
func TestNobodyLinksWatermillsKafka(t *testing.T) {
	for pkg, deps := range packages(t) {
		for _, dep := range deps {
			require.False(t, within(dep, []string{"github.com/IBM/sarama", "github.com/ThreeDotsLabs/watermill-kafka"}), "%s links %s", pkg, dep)
		}
	}
}

func TestTheInnermostPackagesLinkNextToNothing(t *testing.T) {
	all := packages(t)
	for _, c := range []struct {
		pkg     string
		allowed []string // besides the standard library
	}{
		{"domain", append(own("internal/jsonfields", "internal/processmsg", "internal/rootstate", "internal/testclock"), "github.com/google/uuid")},
		{"domain/domaintest", append(own("domain", "internal/jsonfields", "internal/processmsg", "internal/rootstate", "internal/testclock"), "github.com/google/uuid")},
		{"broker", nil},
		{"broker/memory", own("broker")},
	} {
		t.Run(c.pkg, func(t *testing.T) {
			deps, ok := all[path.Join(module, c.pkg)]
			require.True(t, ok, "no such package")
			for _, dep := range deps {
				require.True(t, isStandard(dep) || within(dep, c.allowed), "links %s", dep)
			}
		})
	}
}

func TestProgramsLinkNoTestLibraries(t *testing.T) {
	for pkg, deps := range packages(t) {
		if isSuite(pkg) {
			continue
		}
		for _, dep := range deps {
			require.False(t, within(dep, testLibs) || (isOwn(dep) && isSuite(dep)), "%s links %s", pkg, dep)
		}
	}
}
