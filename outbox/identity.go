package outbox

import (
	"fmt"
	"strings"
)

// Identity is what tells a database from its copies. What isn't known is empty, and is
// not compared.
type Identity struct {
	// System is PostgreSQL's system identifier: initdb and pg_upgrade make another one, so
	// a dump that is restored in another cluster has another.
	System string `json:"system,omitempty"`
	// Timeline is PostgreSQL's, in hexadecimal: a standby that is promoted and a restore to
	// a point in time begin another one.
	Timeline string `json:"timeline,omitempty"`
	// Database is the database's number in its cluster: a dump that is restored beside the
	// original has another.
	Database string `json:"database,omitempty"`
	// File is the number of SQLite's file: a copy has another.
	File string `json:"file,omitempty"`
	// Made is when SQLite's file was made, where the file system tells: the number of a file
	// that was removed may be given to the next one, which is the copy that takes its place.
	Made string `json:"made,omitempty"`
}

// String is such as "system 7412…, timeline 00000001, database 16384".
func (i Identity) String() string {
	var parts []string
	for _, p := range i.parts() {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if len(parts) == 0 {
		return "unknown"
	}
	return strings.Join(parts, ", ")
}

// Moved says what differs from how it was recorded, such as "timeline: it was 00000001 and
// is 00000002". It is empty if i is the same database as far as both are known.
func (i Identity) Moved(recorded Identity) string {
	var moved []string
	before := recorded.parts()
	for n, p := range i.parts() {
		if was := before[n].value; p.value != "" && was != "" && p.value != was {
			moved = append(moved, fmt.Sprintf("%s: it was %s and is %s", p.name, was, p.value))
		}
	}
	return strings.Join(moved, "; ")
}

// PromotedFrom says whether only the timeline differs, and is a later one: a standby has
// become the primary, or the database was restored to a point in time.
func (i Identity) PromotedFrom(recorded Identity) bool {
	later := len(i.Timeline) == len(recorded.Timeline) && i.Timeline > recorded.Timeline
	i.Timeline = recorded.Timeline
	return later && i.Moved(recorded) == ""
}

type identityPart struct{ name, value string }

func (i Identity) parts() [5]identityPart {
	return [...]identityPart{{"system", i.System}, {"timeline", i.Timeline}, {"database", i.Database}, {"file", i.File}, {"made", i.Made}}
}

// MovedError says that a database is not the one that its outbox was written in, but a
// copy, a restored one, or a standby that was promoted. Nothing is published from it until
// an operator accepts it.
type MovedError struct{ Recorded, Present Identity }

func (e *MovedError) Error() string {
	return "this database is not the one that its outbox was written in (" + e.Present.Moved(e.Recorded) +
		"); if it is to take its place, `waybill database accept` has engines publish from it"
}
