package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var minor = regexp.MustCompile(`\d+\.\d+`)

// README says which versions Waybill is tested with: those that scripts/services and go.mod
// have, on which everything runs, and those that scripts/versions runs the suites on.
func TestReadme_NamesTheVersionsThatTestsRunOn(t *testing.T) {
	source := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		return string(text)
	}
	one := func(pattern, path string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(source(path))
		require.NotNil(t, found, "%s in %s", pattern, path)
		return found[1]
	}
	row := func(name string) string { return one(`\| `+name+` \| (.+) \|`, "README.md") }

	databases := []string{one(`image: postgres:(\d+)`, "compose.yaml")}
	for _, found := range regexp.MustCompile(`postgres-(\d+)`).FindAllStringSubmatch(one(`\nall=\((.+)\)`, "scripts/versions"), -1) {
		databases = append(databases, found[1])
	}
	slices.Sort(databases)
	last := len(databases) - 1
	require.Contains(t, row("PostgreSQL"), strings.Join(databases[:last], ", ")+" and "+databases[last]+";")

	oldest, newest := one(`<kafka.version>(.+)</kafka.version>`, "scripts/kafka-pom.xml"), one(`\nkafka=(\S+)`, "scripts/versions")
	require.Equal(t, minor.FindString(oldest)+" and "+minor.FindString(newest), row("Kafka"))
	require.Equal(t, oldest, one(`image: apache/kafka:(\S+)`, "compose.yaml"))

	oldest, newest = one(`\nnats=v(\S+)`, "scripts/versions"), one(`nats-server/v2 v(\S+)`, "go.mod")
	require.Equal(t, minor.FindString(oldest)+", the oldest that is accepted, and "+minor.FindString(newest)+", also embedded", row("NATS JetStream"))
}
