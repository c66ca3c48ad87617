package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// writeTimeout is how long an answer may take that asks for no more.
const writeTimeout = 15 * time.Second

// server is an HTTP server with limits on everything that a client could make
// last for ever.
type server struct {
	name string // of its address, for people
	http *http.Server
	done chan struct{}

	mu       sync.Mutex
	listener net.Listener
}

func newServer(name, addr string, h http.Handler, log *slog.Logger) *server {
	return &server{
		name: name,
		http: &http.Server{
			Addr: addr, Handler: h,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		done: make(chan struct{}),
	}
}

// start listens. failed is called if serving ends by itself.
func (s *server) start(ctx context.Context, failed func(error)) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.http.Addr)
	if err != nil {
		return fmt.Errorf("engine: %s %q: %w; choose another port, or port 0 for a free one", s.name, s.http.Addr, err)
	}
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("engine: HTTP server of %s: %w", s.name, err))
		}
	}()
	return nil
}

func (s *server) addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// stop lets requests end, and cuts them off when ctx is done.
func (s *server) stop(ctx context.Context) error {
	if s.addr() == "" {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("HTTP server of %s: %w", s.name, err), s.http.Close())
	}
	<-s.done
	return err
}
