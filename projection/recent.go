package projection

import "reflect"

// recentRows is how many rows of a table are remembered, at least once there are so many, and
// at most twice as many.
const recentRows = 4096

// recent are rows that batches which have committed have written or read: who has the lease is
// the only one that writes them. What a batch changes by a statement of its own ends that, and
// so does every error.
type recent struct{ tables map[string]*generations }

// generations are rows by key: when there are many new ones, the old ones go.
type generations struct{ now, before map[string]reflect.Value }

func (r *recent) get(table, key string) (value reflect.Value, ok bool) {
	if r == nil || r.tables[table] == nil {
		return value, false
	}
	g := r.tables[table]
	if value, ok = g.now[key]; !ok {
		value, ok = g.before[key]
	}
	return value, ok
}

func (r *recent) has(table, key string) bool {
	_, ok := r.get(table, key)
	return ok
}

// keep takes over what is known of rows after a commit.
func (r *recent) keep(b *batch) {
	if r.tables == nil || b.opaque {
		r.tables = map[string]*generations{}
	}
	for _, c := range b.tables {
		g := r.tables[c.name]
		if g == nil || len(g.now) > recentRows {
			fresh := &generations{now: map[string]reflect.Value{}}
			if g != nil {
				fresh.before = g.now
			}
			g = fresh
			r.tables[c.name] = g
		}
		for k, row := range c.rows {
			g.now[k] = row.value
		}
	}
}
