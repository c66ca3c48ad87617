package timerdb

import (
	"embed"

	"github.com/waybill-go/waybill/internal/migrate"
)

//go:embed migrations
var migrations embed.FS

// Migrations are the table of timers.
func Migrations() migrate.Set {
	return migrate.Embedded("timers", migrations, []migrate.Right{
		// Units of work set and stop them, handlers delete what they have handled.
		{Name: "timers", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	})
}

//go:embed sql
var sqlFiles embed.FS

// text is the SQL of a step: that of both databases, or PostgreSQL's.
func text(step string) string {
	b, err := sqlFiles.ReadFile("sql/both/" + step + ".sql")
	if err != nil {
		b, err = sqlFiles.ReadFile("sql/postgres/" + step + ".sql")
	}
	if err != nil {
		panic(err) // the file is part of this build
	}
	return string(b)
}
