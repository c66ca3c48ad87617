package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/uow"
)

// Servers is what providers of one database and user share, whatever their schemas:
// a connection that listens and one that keeps leases. A program that opens several
// providers makes one and gives it to them all, by Config.Servers or by opening them
// with its FromSettings. Who is on which server is found from their configurations. It
// needs no closing: the last provider of a server that is closed closes its
// connections.
type Servers struct {
	mu  sync.Mutex
	all map[string]*server
}

// NewServers returns one without providers.
func NewServers() *Servers { return &Servers{all: map[string]*server{}} }

// FromSettings is [FromSettings] with s as Config.Servers.
func (s *Servers) FromSettings(ctx context.Context, name string, settings broker.Settings) (uow.Provider, error) {
	cfg, err := ConfigFrom(name, settings)
	if err != nil {
		return nil, err
	}
	cfg.Servers = s
	return Open(ctx, cfg)
}

// server is a database with a user and what else a connection begins with, but for the
// search_path.
type server struct {
	servers   *Servers
	key       string
	providers int // under servers.mu
	listener  listener
	keeper    keeper
}

// join returns the server of c, for a provider that leaves it in the end.
func (s *Servers) join(c *pgx.ConnConfig) *server {
	c = c.Copy()
	delete(c.RuntimeParams, searchPath)
	key := serverKey(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.all[key]
	if at == nil {
		at = &server{servers: s, key: key, listener: listener{cfg: c}, keeper: newKeeper(c)}
		s.all[key] = at
	}
	at.providers++
	return at
}

func (s *server) leave(ctx context.Context) {
	s.servers.mu.Lock()
	s.providers--
	last := s.providers == 0
	if last {
		delete(s.servers.all, s.key)
	}
	s.servers.mu.Unlock()
	if last {
		s.keeper.close(ctx)
	}
}

// serverKey is the same for configurations whose connections are of equal use.
func serverKey(c *pgx.ConnConfig) string {
	var b strings.Builder
	part := func(what ...any) { fmt.Fprintf(&b, "%q\n", fmt.Sprint(what...)) }
	part(c.Host, " ", c.Port, " ", c.TLSConfig != nil)
	for _, f := range c.Fallbacks {
		part(f.Host, " ", f.Port, " ", f.TLSConfig != nil)
	}
	part(c.Database)
	part(c.User)
	part(c.Password)
	for _, name := range slices.Sorted(maps.Keys(c.RuntimeParams)) {
		part(name, "=", c.RuntimeParams[name])
	}
	return b.String()
}
