package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/outbox"
)

var tag = regexp.MustCompile("`yaml:\"([a-z_]+)\"`")

// Every key that the code reads stands in the reference, and the other way
// round.
func TestReference_HasEveryKey(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/configuration.md"))
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(string(text), -1) {
		path := strings.Split(strings.NewReplacer("[]", "", "<name>.", "").Replace(m[1]), ".")
		documented[path[len(path)-1]] = true
	}
	// The names of providers and brokers are the user's, these are read apart.
	code := map[string]bool{"dialect": true, "kind": true, "topic_prefix": true}
	for _, glob := range []string{"engine/config/*.go", "uow/*/*.go", "broker/kafka/*.go", "broker/nats/*.go", "broker/nats/embedded/*.go"} {
		paths, err := filepath.Glob(filepath.Join(root, glob))
		require.NoError(t, err)
		require.NotEmpty(t, paths, glob)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range tag.FindAllStringSubmatch(string(source), -1) {
				code[m[1]] = true
			}
		}
	}
	for _, section := range []string{"providers", "brokers", "outbox", "retry", "retention", "subscriptions", "dead_letters", "server", "tls", "sasl"} {
		delete(code, section)
	}
	require.Equal(t, code, documented)
}

// sample reads the only sample of a configuration file in a document.
func sample(t *testing.T, document string) *config.File {
	t.Helper()
	samples := blocks(t, document, "yaml")
	require.Len(t, samples, 1)
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	require.NoError(t, os.WriteFile(path, []byte(samples[0]), 0o600))
	file, err := config.Parse(path)
	require.NoError(t, err)
	return file
}

// The reference's sample is a valid file.
func TestReference_SampleLoads(t *testing.T) {
	file := sample(t, "docs/reference/configuration.md")
	require.Equal(t, "ordering", file.Domain)
	require.Equal(t, "partner", file.External[0].Broker)
}

// The guide's sample is a valid file, and names every setting that it is about.
func TestGuide_SampleLoads(t *testing.T) {
	file := sample(t, "docs/guides/tuning-and-retention.md")
	require.Equal(t, outbox.Config{}.WithDefaults(), file.Outbox.WithDefaults(), "the sample's values are the defaults")
	for _, setting := range []string{"Calls", "BatchSize", "PollInterval", "MaxPollInterval", "Lease", "PublishTimeout", "OnAbandoned", "Retry", "Retention"} {
		require.NotZero(t, reflect.ValueOf(file.Outbox).FieldByName(setting).Interface(), setting)
	}
}
