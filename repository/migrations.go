package repository

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the tables of documents, events and snapshots. engine.Migrate applies them
// to each of a context's providers.
func Migrations() migrate.Set {
	return migrate.Embedded("repository", migrations, rights)
}
