package migrate

import "strings"

// Role is what somebody does with tables that another role owns: only the owner
// migrates.
type Role string

const (
	// Read only looks: the observatory, `waybill outbox stats|list|show`, doctor.
	Read Role = "read"
	// App saves and consumes: units of work, repositories, subscriptions.
	App Role = "app"
	// Engine does all of that, publishes, cleans up, and does what operators ask for.
	Engine Role = "engine"
)

// Roles are all of them. Each may do what the ones before it may.
func Roles() []Role { return []Role{Read, App, Engine} }

// Kind is the kind of an object, as GRANT names it.
type Kind string

// What migrations make that rights are about.
const (
	Table    Kind = "TABLE"
	Sequence Kind = "SEQUENCE"
	Function Kind = "FUNCTION"
)

// Right is what each role needs on one object that migrations make, as GRANT names
// it: "SELECT, UPDATE (name)". Empty is nothing. SQLite knows none of it.
type Right struct {
	Kind              Kind // Defaults to Table.
	Name              string
	Read, App, Engine string
}

// Of are the privileges that a role needs.
func (r Right) Of(role Role) []string {
	all := map[Role]string{Read: r.Read, App: r.App, Engine: r.Engine}[role]
	if all == "" {
		return nil
	}
	return strings.Split(all, ", ")
}

// Privileges that are needed together.
const (
	Look = "SELECT"
	Work = "SELECT, INSERT, UPDATE, DELETE"
)

// Bookkeeping is the right on the table of versions, which belongs to no feature.
func Bookkeeping() Right {
	return Right{Kind: Table, Name: "waybill_migrations", Read: Look, App: Look, Engine: Look}
}
