package repository

import (
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
)

// rights are what roles that don't own the tables need on them. No event is ever
// removed; the mark of a version that was refused to a lost commit is written over.
var rights = []migrate.Right{
	{Name: "documents", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "document_index", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "document_unique", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "events", Read: migrate.Look, App: "SELECT, INSERT, UPDATE", Engine: "SELECT, INSERT, UPDATE"},
	{Name: "snapshots", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	historydb.Positions(),
}
