package docs

import (
	"archive/zip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const module = "github.com/waybill-go/waybill"

// release is this tree as a module proxy would hand it out, and the environment in
// which the go command finds it there. That is what a reader has once a version is
// published, but for the two settings that say where it is, and that the checksum
// database doesn't know it.
func release(t *testing.T) (env []string) {
	t.Helper()
	version := fmt.Sprintf("v0.0.0-test.%d", time.Now().UnixNano()) // the module cache keeps what it has once seen
	proxy := t.TempDir()
	dir := filepath.Join(proxy, module, "@v")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	write("list", version+"\n")
	write(version+".info", fmt.Sprintf(`{"Version": %q, "Time": %q}`, version, time.Now().UTC().Format(time.RFC3339)))
	write(version+".mod", string(mod))
	pack(t, filepath.Join(dir, version+".zip"), module+"@"+version+"/")

	goEnv := func(name string) string {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	cache := goEnv("GOMODCACHE")
	t.Cleanup(func() { forget(t, cache, version) })
	unknown := strings.TrimPrefix(goEnv("GONOSUMDB")+","+module, ",")
	return append(os.Environ(), "GOPROXY=file://"+filepath.ToSlash(proxy)+","+goEnv("GOPROXY"), "GONOSUMDB="+unknown, "GOFLAGS=")
}

// pack makes a module's zip file: modules within it are not part of it.
func pack(t *testing.T, path, prefix string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	z := zip.NewWriter(file)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // other tests' files come and go
		case err != nil || path == root:
			return err
		case d.IsDir():
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		case !d.Type().IsRegular() || strings.HasPrefix(d.Name(), "."):
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		w, err := z.Create(prefix + filepath.ToSlash(relative))
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}))
	require.NoError(t, z.Close())
}

// forget removes a version from the module cache, whose files nobody may write.
func forget(t *testing.T, cache, version string) {
	t.Helper()
	tree := filepath.Join(cache, module+"@"+version)
	require.NoError(t, filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return err
	}))
	require.NoError(t, os.RemoveAll(tree))
	files, err := filepath.Glob(filepath.Join(cache, "cache/download", module, "@v", version+".*"))
	require.NoError(t, err)
	for _, path := range files {
		require.NoError(t, os.Remove(path))
	}
}

// T11: what the documentation runs of this repository is there, and so is every file
// that it gives to it.
func TestCommands_T11_NameFilesThatExist(t *testing.T) {
	files := regexp.MustCompile(`(?:go run|--config|--file) (\.?[\w./-]+)`)
	seen := 0
	for _, document := range documents(t) {
		for _, block := range append(blocks(t, document, "sh"), blocks(t, document, "bash")...) {
			for line := range strings.Lines(block) {
				if !strings.Contains(line, "go run ./") {
					continue
				}
				for _, m := range files.FindAllStringSubmatch(line, -1) {
					seen++
					_, err := os.Stat(filepath.Join(root, m[1]))
					require.NoError(t, err, "%s: %s", document, line)
				}
			}
		}
	}
	require.Positive(t, seen)
}

// reader types what a document says, in one directory after the other as it says.
type reader struct {
	t   *testing.T
	dir string
	env []string
}

// types runs a block of commands as it is printed, and returns what it prints.
func (r *reader) types(block string) (stdout string) {
	r.t.Helper()
	at := filepath.Join(r.t.TempDir(), "at")
	cmd := exec.CommandContext(r.t.Context(), "sh", "-e", "-c", block+"\npwd > '"+at+"'")
	cmd.Dir, cmd.Env = r.dir, append(r.env, "PWD="+r.dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(r.t, err, "%s\n%s\n%s", block, out, stderr.String())
	dir, err := os.ReadFile(at)
	require.NoError(r.t, err)
	r.dir = strings.TrimSpace(string(dir))
	return string(out)
}

// writes puts a file into the reader's directory.
func (r *reader) writes(name, content string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600))
}

const (
	tutorial = "docs/tutorial.md"
	second   = "docs/tutorial-servers.md"
)

// N1, T11: what the tutorial says is typed as it is printed, in an empty directory
// with the module as it will be published, and with a clone until it is. The
// events of a program that was killed in between are heard of once. The second part continues in
// the same directory.
func TestTutorial_N1_T11_AsItIsPrinted(t *testing.T) {
	commands := blocks(t, tutorial, "sh")
	require.Len(t, commands, 4, "the module, the run, the look, the kill")
	for name, begin := range map[string]func(t *testing.T) *reader{
		"published": func(t *testing.T) *reader {
			r := &reader{t: t, dir: t.TempDir(), env: release(t)}
			r.types(commands[0])
			return r
		},
		"cloned": func(t *testing.T) *reader {
			r := &reader{t: t, dir: t.TempDir(), env: append(os.Environ(), "GOFLAGS=")}
			here, err := filepath.Abs(root)
			require.NoError(t, err)
			require.NoError(t, os.Symlink(here, filepath.Join(r.dir, "waybill"))) // the clone
			instead := blocks(t, tutorial, "bash")
			require.Len(t, instead, 1)
			clone, replace, ok := strings.Cut(instead[0], "\n")
			require.True(t, ok)
			require.Equal(t, "git clone https://"+module+" ../waybill", clone)
			lines := strings.SplitAfter(commands[0], "\n")
			r.types(strings.Join(lines[:len(lines)-2], "") + replace)
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t)
			r.follows(commands[1:])
			if name == "cloned" { // that one has most of it built
				r.deploys()
			}
		})
	}
}

// follows runs, looks and kills, once the module is there.
func (r *reader) follows(commands []string) {
	t := r.t
	programs, printed := blocks(t, tutorial, "go"), blocks(t, tutorial, "text")
	require.Len(t, programs, 2)
	require.Len(t, printed, 1)
	r.writes("todo.go", programs[0])
	r.writes("main.go", programs[1])
	run, look, kill := commands[0], commands[1], commands[2]

	require.Equal(t, printed[0], r.types(run))
	require.Regexp(t, stats(0, 2)+"$", r.types(look))
	require.Regexp(t, stats(2, 2)+printed[0]+stats(0, 4)+"$", r.types(kill))
}

// stats is what `waybill outbox stats` says of so many rows.
func stats(pending, published int) string {
	return fmt.Sprintf(`PROVIDER .*\ndefault +default +%d +0 +%d +0 +0 .*\n`, pending, published)
}
