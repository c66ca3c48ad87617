package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/uow"
)

type observatoryCmd struct {
	Addr         string `default:"127.0.0.1:0" help:"Listen on this host:port; port 0 picks a free one."`
	ShowPayloads bool   `help:"Show message bodies and headers to users with a token of role operate."`
}

// Run serves until ctx is done. The tokens are the file's; where it has none, there
// is one for this time, so that whoever started this can read and act, and nobody
// else.
func (o observatoryCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) (err error) {
	d, err := c.openThere(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	providers, err := there(d, stderr)
	if err != nil {
		return err
	}
	server := d.server
	server.Addr = o.Addr
	server.ShowPayloads = server.ShowPayloads || o.ShowPayloads
	made := server.Token == "" && len(server.Tokens) == 0
	if made {
		server.Token = rand.Text()
	}
	e, err := engine.NewObservatory(engine.ObservatoryConfig{
		Providers: providers, Retention: d.retention, Server: server,
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := e.Start(ctx); err != nil {
		return err
	}
	url := "http://" + e.Addr() + "/"
	switch {
	case c.JSON && made:
		err = writeJSON(stdout, map[string]string{"url": url, "token": server.Token})
	case c.JSON:
		err = writeJSON(stdout, map[string]string{"url": url})
	default:
		fmt.Fprintln(stdout, url)
		if made {
			fmt.Fprintf(stderr, "The page asks for this token: %s\n", server.Token)
		}
	}
	return errors.Join(err, e.Run(ctx))
}

// there are those that are not away, of which it tells; without any that is the error.
func there(d *databases, stderr news) (providers []uow.Provider, err error) {
	for _, p := range d.providers {
		if wrong := away(p); wrong != nil {
			err = errors.Join(err, wrong)
			continue
		}
		providers = append(providers, p)
	}
	if len(providers) > 0 && err != nil {
		fmt.Fprintf(stderr, "waybill: %s\nThe page has the other databases. Start it again when that is back.\n", printable(err.Error()))
		return providers, nil
	}
	return providers, err
}
