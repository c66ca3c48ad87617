// Package release tests scripts/release, which makes versions.
package release

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "github.com/waybill-go/waybill"
)

// run is a command's output, of both kinds, and whether it succeeded.
func run(t *testing.T, dir string, environment []string, command ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com", "GOFLAGS=")
	c.Env = append(c.Env, environment...)
	out, err := c.CombinedOutput()
	return string(out), err
}

func must(t *testing.T, dir string, environment []string, command ...string) string {
	t.Helper()
	out, err := run(t, dir, environment, command...)
	require.NoError(t, err, "%q: %s", command, out)
	return strings.TrimSpace(out)
}

// tree is a commit of the files as they are, which nothing else refers to.
func tree(t *testing.T) string {
	if c := must(t, root, nil, "git", "stash", "create"); c != "" {
		return c
	}
	return must(t, root, nil, "git", "rev-parse", "HEAD")
}

// clone is a repository of its own at that commit.
func clone(t *testing.T) string {
	dir := t.TempDir()
	at, err := filepath.Abs(root)
	require.NoError(t, err)
	must(t, dir, nil, "git", "init", "-q")
	must(t, dir, nil, "git", "fetch", "-q", "--depth=1", at, "+"+tree(t)+":refs/heads/here")
	must(t, dir, nil, "git", "checkout", "-q", "here")
	return dir
}

// In the form in which the module is fetched, nothing is missing: each package of the library and the command finds what it
// imports and embeds, without what this repository replaces. Modules of their own are not in it.
func TestModule_IsWholeWhereItIsFetched(t *testing.T) {
	t.Parallel()
	proxy := t.TempDir()
	must(t, root, nil, "scripts/release", "proxy", proxy, "v0.1.0", tree(t))

	z, err := zip.OpenReader(filepath.Join(proxy, module, "@v/v0.1.0.zip"))
	require.NoError(t, err)
	defer z.Close()
	in := map[string]bool{}
	var size uint64
	for _, f := range z.File {
		in[strings.TrimPrefix(f.Name, module+"@v0.1.0/")] = true
		size += f.UncompressedSize64
	}
	require.True(t, in["go.mod"] && in["LICENSE"] && in["cmd/waybill/main.go"])
	require.False(t, in["bench/main.go"] || in["broker/watermill/kafka/kafka.go"], "modules of their own")
	require.Less(t, size, uint64(16<<20), "what everybody downloads")

	fetched := t.TempDir()
	require.NoError(t, os.CopyFS(fetched, sub(t, z, module+"@v0.1.0")))
	goMod, err := os.ReadFile(filepath.Join(fetched, "go.mod"))
	require.NoError(t, err)
	require.NotContains(t, string(goMod), "replace", "go install …@latest refuses it")
	must(t, fetched, []string{"GOFLAGS=-mod=readonly", "GOWORK=off"}, "go", "list", "-deps", "./...")
}

func sub(t *testing.T, z fs.FS, dir string) fs.FS {
	inner, err := fs.Sub(z, dir)
	require.NoError(t, err)
	return inner
}

// What can't become a version is refused before anything is built, with what to do.
func TestCheck_Refuses(t *testing.T) {
	t.Parallel()
	dir := clone(t)
	refused := func(want, version string) {
		t.Helper()
		out, err := run(t, dir, nil, "scripts/release", "check", version)
		require.Error(t, err)
		require.Contains(t, out, want)
	}
	refused("is no version", "0.1.0")
	refused("is no version", "v0.1")
	refused("its module path ends in /v2", "v2.0.0")
	refused("scripts/release prepare v0.2.0", "v0.2.0")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new.txt"), nil, 0o600))
	refused("commit first", "v0.2.0")

	must(t, dir, nil, "scripts/release", "prepare", "v0.2.0")
	must(t, dir, nil, "git", "add", ".")
	must(t, dir, nil, "git", "commit", "-qm", "0.2.0")
	must(t, dir, nil, "git", "tag", "v0.3.0")
	refused("v0.2.0 is lower than v0.3.0", "v0.2.0")
	must(t, dir, nil, "git", "tag", "-a", "v0.2.0", "-m", "0.2.0")
	refused("a version is never changed", "v0.2.0")
	changes, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	require.NoError(t, err)
	require.Regexp(t, `## Unreleased\n\n## 0\.2\.0 - \d{4}-\d\d-\d\d\n\n###`, string(changes))
	require.Contains(t, must(t, dir, nil, "cat", "broker/watermill/kafka/go.mod"), module+" v0.2.0")

	// The next version is compared with this one, whose tag has a message.
	must(t, dir, nil, "scripts/release", "proxy", dir+"/proxy", "v0.2.0", "v0.2.0")
	info, err := os.ReadFile(filepath.Join(dir, "proxy", module, "@v/v0.2.0.info"))
	require.NoError(t, err)
	require.Regexp(t, `^\{"Version":"v0\.2\.0","Time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"\}\n$`, string(info))
}

// A version from its commit to what is uploaded, by one who has never seen it: the library and the command are fetched
// from a proxy made of files, the rest from where it is usually got. WAYBILL_LONG=1 has all of it, for this platform only;
// RELEASE_PLATFORMS says for which others.
func TestCheck_MakesAVersion(t *testing.T) {
	if os.Getenv("WAYBILL_LONG") == "" {
		return // the two tests above are the cheap part
	}
	dir := clone(t)
	must(t, dir, nil, "scripts/release", "prepare", "v0.1.0")
	must(t, dir, nil, "git", "commit", "-qam", "0.1.0")
	out := must(t, dir, []string{"RELEASE_PLATFORMS=linux/amd64 windows/arm64"}, "scripts/release", "tag", "v0.1.0")
	at := filepath.Join(dir, ".services/release/v0.1.0")
	sums := must(t, at, nil, "sha256sum", "-c", "SHA256SUMS")
	for _, name := range []string{"waybill_v0.1.0_linux_amd64", "waybill_v0.1.0_linux_amd64.cdx.json", "waybill_v0.1.0_windows_arm64.exe", "LICENSE"} {
		require.Contains(t, sums, name+": OK", out)
	}
	require.Equal(t, "broker/watermill/kafka/v0.1.0\nv0.1.0", must(t, dir, nil, "git", "tag"))

	// The next one takes something away.
	must(t, dir, nil, "sed", "-i", "s/^func NewRoot()/func MadeRoot()/; s/NewRoot()/MadeRoot()/", "domain/aggregate.go")
	must(t, dir, nil, "scripts/release", "prepare", "v0.1.1")
	must(t, dir, nil, "git", "commit", "-qam", "0.1.1")
	out, err := run(t, dir, nil, "scripts/release", "check", "v0.1.1")
	require.Error(t, err)
	require.Contains(t, out, "NewRoot: removed")
}
