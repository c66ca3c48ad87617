package engine

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// askApp is what the application's server answers, or why it doesn't.
func askApp(ctx context.Context, e *Engine) string {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.AppAddr(), nil)
	if err != nil {
		return err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// A request that is being answered may end, and nobody else is let in.
func TestApp_IsTheFirstToStop(t *testing.T) {
	b := setup(t)
	entered, release := make(chan struct{}), make(chan struct{})
	cfg := b.config()
	cfg.App = App{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-release
		if err := b.repo.Save(r.Context(), newSale(1)); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, "sold")
	})}
	e := b.make(cfg)
	require.Empty(t, e.AppAddr())
	require.NoError(t, e.Start(t.Context()))
	require.NotEmpty(t, b.logs.with("engine is running", "app="+e.AppAddr()))
	answered := make(chan string, 1)
	go func() { answered <- askApp(t.Context(), e) }()
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- e.Stop(context.Background()) }()
	eventually(t, func() bool {
		c, err := net.Dial("tcp", e.AppAddr())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	var h health
	require.Equal(t, 503, get(t, e, "/readyz", &h))
	require.Equal(t, "draining", h.Status)
	close(release)
	require.Equal(t, "sold", <-answered)
	require.NoError(t, <-ended)
	var rows int
	require.NoError(t, b.db.Reader().NewRaw("SELECT count(*) FROM outbox").Scan(t.Context(), &rows))
	require.Equal(t, 2, rows, "it is sold")
}

// A request that doesn't end is cut off, and leaves time for the rest.
func TestApp_ARequestWithoutAnEndIsCutOff(t *testing.T) {
	b := setup(t)
	entered := make(chan struct{})
	cfg := b.config()
	cfg.StopTimeout = 3 * time.Second
	cfg.App = App{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})}
	ctx, cancel := context.WithCancel(t.Context())
	e := b.make(cfg)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	eventually(t, func() bool { return e.AppAddr() != "" })
	go askApp(t.Context(), e)
	<-entered
	cancel()
	err := <-ended
	require.ErrorContains(t, err, "HTTP server of App.Addr")
	require.NotContains(t, err.Error(), "processor")
}

func TestApp_AnAddressThatIsTaken(t *testing.T) {
	b := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	cfg := b.config()
	cfg.App = App{Addr: l.Addr().String(), Handler: http.NotFoundHandler()}
	e := b.make(cfg)
	require.ErrorContains(t, e.Start(t.Context()), `engine: App.Addr "`+l.Addr().String()+`"`)
	_, err = net.Dial("tcp", e.Addr())
	require.Error(t, err, "nothing runs")
}
