package process

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the table of processes. engine.Migrate applies them to each of a
// context's providers.
func Migrations() migrate.Set {
	return migrate.Embedded("process", migrations, []migrate.Right{
		{Name: "processes", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	})
}
