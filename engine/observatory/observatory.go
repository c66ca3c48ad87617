// Package observatory is the engine's web page: what waits, what failed, the way
// of a single message, dead letters, and what an operator can do about them.
//
// The page is static and holds nothing of the service. Its script reads the
// engine's API beside it, under api/, with the token that the visitor gives.
package observatory

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed page
var page embed.FS

// policy lets the page load and ask nothing but its own server, run nothing but
// its own files, and make no element out of text.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'"

// kinds are the types of the files, whatever this machine's own list says.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Handler serves the page at / and what belongs to it under /assets/, to anybody.
// It can stand under a prefix that is stripped before: the page names all that it
// needs relative to itself.
func Handler() http.Handler {
	files := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := files[r.URL.Path]
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", policy)
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, r.Method+" is not possible here; use GET", http.StatusMethodNotAllowed)
			return
		case r.URL.Path == "/":
			h.Set("Cache-Control", "no-cache")
		default:
			h.Set("Cache-Control", "public, max-age=31536000, immutable") // its path names its content
		}
		sum := sha256.Sum256(content)
		h.Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
		h.Set("Content-Type", kindOf(r.URL.Path))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

func kindOf(name string) string {
	if name == "/" {
		return kinds[".html"]
	}
	if kind, ok := kinds[path.Ext(name)]; ok {
		return kind
	}
	return "text/plain; charset=utf-8"
}

// load returns all files by the path that they are served at. Assets stand below
// the hash of them all, so that a browser may keep them for ever: modules name each
// other relative to themselves.
func load() map[string][]byte {
	assets, all := map[string][]byte{}, sha256.New()
	err := fs.WalkDir(page, "page/assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := page.ReadFile(name)
		all.Write(content)
		assets[strings.TrimPrefix(name, "page/assets/")] = content
		return err
	})
	index, missing := page.ReadFile("page/index.html")
	if err != nil || missing != nil {
		panic("observatory: this build lacks its own files")
	}
	version := "assets/" + hex.EncodeToString(all.Sum(nil)[:8]) + "/"
	files := map[string][]byte{"/": bytes.ReplaceAll(index, []byte(`="assets/`), []byte(`="`+version))}
	for name, content := range assets {
		files["/"+version+name] = content
	}
	return files
}
