package subscription

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the tables of inboxes and dead letters.
func Migrations() migrate.Set {
	return migrate.Embedded("subscription", migrations, rights)
}
