package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ShiftVar is by how many seconds the clock of a program is off that was built with
// [ClockOverlay].
const ShiftVar = "WAYBILL_CHAOS_SHIFT"

// ClockOverlay writes an overlay for the Go command into dir. What is built with it has a
// package time that adds to what the system says, by [ShiftVar]. The monotonic clock goes
// as always.
func ClockOverlay(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		return "", fmt.Errorf("%s: time.Now is not what it was in the Go that this program knows", original)
	}
	changed := strings.Replace(string(text), now, now+"\tsec += shift\n", 1) + `
var shift = shiftFromEnvironment()

func shiftFromEnvironment() int64 {
	text, _ := syscall.Getenv("` + ShiftVar + `")
	sign := int64(1)
	if text != "" && text[0] == '-' {
		sign, text = -1, text[1:]
	}
	n, _ := atoi(text)
	return sign * int64(n)
}
`
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"syscall\"\n", 1)
	replacement, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(
		os.WriteFile(replacement, []byte(changed), 0o600),
		os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, original, replacement), 0o600))
}

// command is this program's package.
const command = "github.com/waybill-go/waybill/cmd/waybill-chaos"

// shifted builds this program with a clock that can be off.
func shifted(ctx context.Context, dir string) (string, error) {
	overlay, err := ClockOverlay(ctx, dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "shifted")
	if out, err := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", path, command).CombinedOutput(); err != nil { //nolint:gosec // The overlay was just written.
		return "", fmt.Errorf("go build -overlay: %w\n%s", err, out)
	}
	return path, nil
}

// canShift says why no program with another clock can be built here.
func canShift(ctx context.Context) string {
	if err := exec.CommandContext(ctx, "go", "list", command).Run(); err != nil {
		return "a program with another clock is built of Waybill's sources: have Go in the PATH, and start waybill-chaos in the sources' directory"
	}
	return ""
}
