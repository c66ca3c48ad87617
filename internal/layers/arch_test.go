package layers_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// S8: an int has 32 bits on some of the machines that programs run on. To vet is to
// compile, tests included; the go command keeps what it has compiled.
func TestBuildsFor32Bits_S8(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "vet", module+"/...")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=386", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "GOOS=linux GOARCH=386 go vet ./...:\n%s", out)
}
