package projection

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the tables in which projections keep their books. engine.Migrate applies
// them to each of a context's providers. The tables of the projections themselves are made
// by the programs that run them, whose role needs CREATE on the schema.
func Migrations() migrate.Set {
	return migrate.Embedded("projection", migrations, []migrate.Right{
		{Name: "projections", Read: migrate.Look, App: migrate.Look, Engine: migrate.Work},
		{Name: "projection_positions", Read: migrate.Look, App: migrate.Look, Engine: migrate.Work},
	})
}
