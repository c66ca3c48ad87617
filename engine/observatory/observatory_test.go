package observatory_test

import (
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/engine/observatory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ask(t *testing.T, method, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	observatory.Handler().ServeHTTP(w, r)
	return w
}

func read(t *testing.T, target string) string {
	t.Helper()
	w := ask(t, http.MethodGet, target)
	require.Equal(t, http.StatusOK, w.Code, target)
	return w.Body.String()
}

var (
	inPage   = regexp.MustCompile(`(?:src|href)="([^"#]+)"`)
	inModule = regexp.MustCompile(`(?m)^import .*?'([^']+)';$`)
)

// assets are the paths of everything that the page loads, and what that loads.
func assets(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	var load func(target string)
	load = func(target string) {
		if _, ok := found[target]; ok {
			return
		}
		found[target] = read(t, target)
		if path.Ext(target) != ".js" {
			return
		}
		for _, m := range inModule.FindAllStringSubmatch(found[target], -1) {
			load(path.Join(path.Dir(target), m[1]))
		}
	}
	for _, m := range inPage.FindAllStringSubmatch(read(t, "/"), -1) {
		load("/" + m[1])
	}
	return found
}

func TestHandler_EveryAssetIsThere(t *testing.T) {
	all := assets(t)
	require.Greater(t, len(all), 15, "the views are modules of their own")
	for target, content := range all {
		require.NotEmpty(t, content, target)
		require.Regexp(t, `^/assets/[0-9a-f]{16}/`, target)
	}
}

var (
	address  = regexp.MustCompile(`(?i)(?:https?:|wss?:)?//[a-z0-9-]+\.[a-z]`)
	comments = regexp.MustCompile(`(?m)^//.*$|/\*.*?\*/`)
)

// Nothing is loaded from elsewhere, and no text becomes elements or code.
func TestHandler_AssetsStandAlone(t *testing.T) {
	all := assets(t)
	all["/"] = read(t, "/")
	for target, content := range all {
		content = comments.ReplaceAllString(content, "")
		content = strings.ReplaceAll(content, `http://www.w3.org/2000/svg`, "") // the name of the namespace: nothing is loaded from it
		require.NotRegexp(t, address, content, target)
		for _, denied := range []string{
			"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "@import", "javascript:",
		} {
			require.NotContains(t, content, denied, target)
		}
	}
	index := all["/"]
	require.NotRegexp(t, `<script[^>]*>[^<]`, index, "an inline script")
	require.NotRegexp(t, `(?i)<style|\sstyle=|\son[a-z]+=`, index)
}

func TestHandler_Headers(t *testing.T) {
	for target := range assets(t) {
		h := ask(t, http.MethodGet, target).Header()
		require.Equal(t, "public, max-age=31536000, immutable", h.Get("Cache-Control"), target)
		strict(t, h)
	}
	page := ask(t, http.MethodGet, "/")
	strict(t, page.Header())
	require.Equal(t, "no-cache", page.Header().Get("Cache-Control"))
	require.Equal(t, "text/html; charset=utf-8", page.Header().Get("Content-Type"))
	require.Equal(t, http.StatusNotModified, ask(t, http.MethodGet, "/", "If-None-Match", page.Header().Get("ETag")).Code)

	missing := ask(t, http.MethodGet, "/assets/nothing.js")
	require.Equal(t, http.StatusNotFound, missing.Code)
	strict(t, missing.Header())
	require.Equal(t, http.StatusMethodNotAllowed, ask(t, http.MethodPost, "/").Code)
	require.Equal(t, http.StatusOK, ask(t, http.MethodHead, "/").Code)
}

func strict(t *testing.T, h http.Header) {
	t.Helper()
	policy := h.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'self';")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.NotContains(t, policy, "unsafe")
	require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
	require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
}
