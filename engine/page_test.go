package engine

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page holds nothing of the service, so anybody gets it; what it asks for is
// given to those who may read.
func TestHTTP_ThePageIsForAnybody(t *testing.T) {
	b := setup(t)
	cfg := b.config()
	cfg.Server = Server{Addr: "0.0.0.0:0", Token: token}
	h := b.make(cfg).Handler()
	page := ask(h, "GET", "/", "host", "10.1.2.3:9000", "")
	require.Equal(t, 200, page.Code)
	require.Contains(t, page.Header().Get("Content-Security-Policy"), "default-src 'self'")
	asset := regexp.MustCompile(`assets/\w+/app\.js`).FindString(page.Body.String())
	require.Equal(t, 200, ask(h, "GET", "/"+asset, "host", "10.1.2.3:9000", "").Code)
	require.Equal(t, 404, ask(h, "GET", "/assets/nothing", "host", "10.1.2.3:9000", "").Code)
	require.Equal(t, 401, ask(h, "GET", "/api/outbox", "host", "10.1.2.3:9000", "").Code)
	require.Equal(t, 405, ask(h, "POST", "/", "host", "10.1.2.3:9000", "Bearer "+token).Code)
}
