package command

import (
	"embed"
	"io/fs"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the table of idempotency keys. engine.Migrate applies them to each of
// a context's providers.
func Migrations() migrate.Set {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of this build
	}
	return migrate.Set{Feature: "command", Files: files, Rights: []migrate.Right{
		{Name: "command_keys", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	}}
}
