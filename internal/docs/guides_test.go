package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/engine/config"
)

// Every whole file that the guides show is a valid one.
func TestGuides_SamplesLoad(t *testing.T) {
	guides, err := filepath.Glob(filepath.Join(root, "docs/guides/*.md"))
	require.NoError(t, err)
	loaded := 0
	for _, guide := range guides {
		for _, sample := range blocks(t, filepath.Join("docs/guides", filepath.Base(guide)), "yaml") {
			if !strings.HasPrefix(sample, "domain:") {
				continue // a part
			}
			path := filepath.Join(t.TempDir(), "waybill.yaml")
			require.NoError(t, os.WriteFile(path, []byte(sample), 0o600))
			_, err := config.Parse(path)
			require.NoError(t, err, guide)
			loaded++
		}
	}
	require.Positive(t, loaded)
}
