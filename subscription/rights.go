package subscription

import "github.com/waybill-go/waybill/internal/migrate"

// rights are what roles that don't own the tables need on them. Operators act
// through an engine, or as its role.
var rights = []migrate.Right{
	{Name: "inbox", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "inbox_attempts", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "inbox_marks", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "subscription_runs", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "subscription_uptime", Read: migrate.Look, App: migrate.Work, Engine: migrate.Work},
	{Name: "subscription_evictions", Read: migrate.Look, App: "SELECT, INSERT, UPDATE", Engine: migrate.Work},
	{Name: "dead_letters", Read: migrate.Look, App: "SELECT, INSERT, UPDATE", Engine: migrate.Work},
	{Name: "dead_letter_actions", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
	{Name: "subscription_jobs", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
	// Identity columns need no right.
	{Kind: migrate.Sequence, Name: "dead_letters_seq_seq"},
	{Kind: migrate.Sequence, Name: "dead_letter_actions_id_seq"},
}
