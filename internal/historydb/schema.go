package historydb

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the table history. Its readers need those of package repository, too.
func Migrations() migrate.Set {
	return migrate.Embedded("history", migrations, []migrate.Right{
		{Name: "history", Read: migrate.Look, App: "SELECT, INSERT", Engine: "SELECT, INSERT"},
		Positions(),
	})
}

// Positions is the right on what positions are drawn from, for whoever writes events.
func Positions() migrate.Right {
	return migrate.Right{Kind: migrate.Sequence, Name: "history_position", App: "USAGE", Engine: "USAGE"}
}
