package subscription

import (
	"embed"
	"io/fs"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the tables of inboxes and dead letters.
func Migrations() migrate.Set {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of this build
	}
	return migrate.Set{Feature: "subscription", Files: files, Rights: rights}
}
