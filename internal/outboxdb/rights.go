package outboxdb

import "github.com/waybill-go/waybill/internal/migrate"

// rights are what roles that don't own the tables need on them.
func rights() []migrate.Right {
	return []migrate.Right{
		// A unit of work inserts a lane for a target that is new.
		{Name: "outbox_lanes", Read: migrate.Look, App: "SELECT, INSERT", Engine: "SELECT, INSERT"},
		{Kind: migrate.Function, Name: "outbox_new_lane(text)", App: "EXECUTE", Engine: "EXECUTE"},
		{Name: "outbox_messages", Read: migrate.Look, App: "SELECT, INSERT", Engine: migrate.Work},
		{Name: "outbox_queue", Read: migrate.Look, App: "SELECT, INSERT", Engine: migrate.Work},
		{Name: "outbox_members", Read: migrate.Look, Engine: migrate.Work},
		{Name: "outbox_uncrashed", Read: migrate.Look, Engine: "SELECT, INSERT"},
		{Name: "outbox_partitions", Read: migrate.Look, Engine: migrate.Work},
		{Name: "outbox_claims", Read: migrate.Look, Engine: migrate.Work},
		{Name: "outbox_log", Read: migrate.Look, Engine: "SELECT, INSERT, DELETE"},
		{Name: "outbox_abandoned", Read: migrate.Look, Engine: migrate.Work},
		{Name: "outbox_counts", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
		// A view, which reads tables by its owner's rights.
		{Name: "outbox", Read: migrate.Look, App: "SELECT", Engine: "SELECT"},
		// A unit of work that isn't READ COMMITTED locks the row that it relies on, which
		// takes the right to update some column.
		{Name: "outbox_settings", Read: migrate.Look, App: "SELECT, UPDATE (name)", Engine: migrate.Work},
		{Name: "outbox_jobs", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
		{Name: "outbox_actions", Read: migrate.Look, Engine: "SELECT, INSERT, UPDATE"},
		// Identity columns need no right. A poll asks how far that of the outbox is.
		{Kind: migrate.Sequence, Name: "outbox_messages_seq_seq", Engine: "SELECT"},
		{Kind: migrate.Sequence, Name: "outbox_lanes_id_seq"},
		{Kind: migrate.Sequence, Name: "outbox_members_member_seq"},
		{Kind: migrate.Sequence, Name: "outbox_log_id_seq"},
		{Kind: migrate.Sequence, Name: "outbox_actions_id_seq"},
	}
}
