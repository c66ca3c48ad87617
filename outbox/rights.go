package outbox

import "github.com/waybill-go/waybill/internal/migrate"

// rights are what roles that don't own the tables need on them.
var rights = []migrate.Right{
	{Name: "outbox", Read: migrate.Look, App: "SELECT, INSERT", Engine: migrate.Work},
	{Name: "outbox_partitions", Read: migrate.Look, Engine: migrate.Work},
	{Name: "outbox_workers", Read: migrate.Look, Engine: migrate.Work},
	// A unit of work that isn't READ COMMITTED locks the row that it relies on, which
	// takes the right to update some column.
	{Name: "outbox_settings", Read: migrate.Look, App: "SELECT, UPDATE (name)", Engine: migrate.Work},
	{Name: "outbox_jobs", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
	{Name: "outbox_actions", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
	{Name: "outbox_published", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
	// Identity columns need no right. A claim asks how far that of the outbox is.
	{Kind: migrate.Sequence, Name: "outbox_seq_seq", Engine: "SELECT"},
	{Kind: migrate.Sequence, Name: "outbox_actions_id_seq"},
	{Kind: migrate.Sequence, Name: "outbox_fence_seq", Engine: "USAGE"},
	{Kind: migrate.Sequence, Name: "outbox_claim_seq", Engine: "USAGE"},
	// A trigger runs it, which takes no right.
	{Kind: migrate.Function, Name: "outbox_refuse_transition()"},
}
