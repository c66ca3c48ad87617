package layers_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// S8: an int has 32 bits on some of the machines that programs run on. In the long run it
// is about all packages, and about tests, which vet compiles; otherwise about what links
// neither SQLite nor the NATS server, which take minutes.
func TestBuildsFor32Bits_S8(t *testing.T) {
	t.Parallel()
	args := []string{"vet", module + "/..."}
	if os.Getenv("WAYBILL_LONG") == "" {
		args = []string{"build"}
		slow := append(slices.Clone(natsServer), "modernc.org/sqlite")
		for pkg, deps := range packages(t) {
			onlyTests := len(deps) == 0
			if !onlyTests && !slices.ContainsFunc(deps, func(dep string) bool { return within(dep, slow) }) {
				args = append(args, pkg)
			}
		}
		require.Contains(t, args, module+"/engine")
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=386", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "GOOS=linux GOARCH=386 go %s:\n%s", strings.Join(args, " "), out)
}
