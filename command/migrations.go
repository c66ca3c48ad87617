package command

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the table of idempotency keys. engine.Migrate applies them to each of
// a context's providers.
func Migrations() migrate.Set {
	return migrate.Embedded("command", migrations, []migrate.Right{
		{Name: "command_keys", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	})
}
