package outboxdb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
)

const (
	// publishedPrefix stands before the context's name in outbox_settings.
	publishedPrefix = "published:"
	// renamedPrefix, too.
	renamedPrefix = "renamed:"
	// sincePrefix stands before "<context>:<target>:<event>", for a target that is joining: some
	// program of the context that has started since publishes the event.
	sincePrefix = "backfill-published:"
	// everPrefix stands before "<context>:<event>": some program of the context has published the
	// event.
	everPrefix = "ever-published:"
)

// WritePublished notes which events of a context are published, by their short
// names, for `waybill outbox backfill` and `waybill history republish`, which know no domain.
//
// In a rolling deployment programs have different events, and these are the ones of whichever
// started last. Those that any of them has ever had are noted beside them, and while a target is
// joining, those that any has had since.
func WritePublished(ctx context.Context, db bun.IDB, name string, events []string) (err error) {
	have, unread := ReadPublished(ctx, db, name)
	if unread != nil || !slices.Equal(have, events) {
		// Only here, as who may not write is to have nothing to write where nothing has changed; and
		// first, as the list tells whether it was done.
		err = noteEach(ctx, db, everPrefix+name+":", slices.Concat(have, events))
		var value []byte
		if err == nil {
			value, err = json.Marshal(append([]string{}, events...))
		}
		if err == nil {
			_, err = db.ExecContext(ctx, text("both", "setting_write"), publishedPrefix+name, string(value))
		}
	}
	if err == nil {
		err = writeSince(ctx, db, name, events)
	}
	if err != nil {
		return fmt.Errorf("outbox: write published events of context %s: %w", name, err)
	}
	return nil
}

// noteEach notes events behind a prefix, unless that was done before. It removes none: programs that
// start at the same time would take each other's for what isn't published any more.
func noteEach(ctx context.Context, db bun.IDB, prefix string, events []string) error {
	noted, err := readNoted(ctx, db, prefix)
	for _, event := range events {
		if err == nil && !slices.Contains(noted, event) {
			_, err = db.ExecContext(ctx, text("both", "setting_init"), prefix+event, "true")
		}
	}
	return err
}

// ReadUnpublished are the events of a context that some program has published, and that are not
// among published.
func ReadUnpublished(ctx context.Context, db bun.IDB, name string, published []string) ([]string, error) {
	ever, err := readNoted(ctx, db, everPrefix+name+":")
	if err != nil {
		return nil, fmt.Errorf("outbox: read published events of context %s: %w", name, err)
	}
	return slices.DeleteFunc(ever, func(event string) bool { return slices.Contains(published, event) }), nil
}

// writeSince notes for the targets that are joining what a program that starts publishes.
func writeSince(ctx context.Context, db bun.IDB, name string, events []string) error {
	t, _, err := FindTargets(ctx, db, name)
	for _, target := range t.Joining {
		if err == nil {
			err = noteEach(ctx, db, sincePrefix+name+":"+target+":", events)
		}
	}
	return err
}

// readNoted are the settings of a context, or of one of its targets, by noteEach: what is behind the
// prefix.
func readNoted(ctx context.Context, db bun.IDB, prefix string) (rest []string, err error) {
	err = dbrows.Each(ctx, db, text("both", "settings_like"), func(scan func(...any) error) error {
		var setting, value string
		err := scan(&setting, &value)
		rest = append(rest, strings.TrimPrefix(setting, prefix))
		return err
	}, len(prefix), prefix)
	return rest, err
}

// forgetSince removes what was noted for targets that are not joining any more.
func forgetSince(ctx context.Context, tx bun.Tx, name string, joining []string) error {
	prefix := sincePrefix + name + ":"
	all, err := readNoted(ctx, tx, prefix)
	for _, rest := range all {
		joins := slices.ContainsFunc(joining, func(j string) bool { return strings.HasPrefix(rest, j+":") })
		if err == nil && !joins {
			_, err = tx.ExecContext(ctx, text("both", "setting_delete"), prefix+rest)
		}
	}
	return err
}

// learn reads which events are published, unless who asks has said it. Each transaction does:
// a program that starts meanwhile may publish more, and raises them behind what was copied.
func (c *copier) learn(ctx context.Context, db bun.IDB) (err error) {
	if !c.told {
		if c.Published, err = ReadPublished(ctx, db, c.Context); err == nil {
			c.Renamed, err = ReadRenamed(ctx, db, c.Context)
		}
		if err != nil {
			return err
		}
	}
	since, err := readNoted(ctx, db, sincePrefix+c.Context+":"+c.Target.Broker+":")
	if err != nil {
		return fmt.Errorf("outbox: read published events of context %s: %w", c.Context, err)
	}
	since = slices.DeleteFunc(since, c.knows)
	if len(since) == 0 {
		return nil
	}
	who := "the one that started last"
	if c.told {
		who = "the one that asks"
	}
	return fmt.Errorf("outbox: programs of context %s that have started since %s joins publish different events, and it would miss some: %s, which %s doesn't publish: "+
		"let the deployment end, with a program that publishes them as the last one to start (or to ask), and try again; "+
		"if they are not to be published any more, stop its programs, take %s out by `waybill migrate --set-targets`, and let it join again", c.Context, c.Target.Broker, strings.Join(since, ", "), who, c.Target.Broker)
}

// knows says whether the target gets an event that some program publishes, maybe under another
// name, or doesn't want it.
func (c *copier) knows(event string) bool {
	for before := range c.Renamed {
		if strings.HasSuffix(before, "."+event) {
			return true
		}
	}
	return slices.Contains(c.Published, event) || c.Target.Events != nil && !slices.Contains(c.Target.Events, event)
}

// WriteRenamed notes which events of a context have had other names: the short ones of
// today by those, such as "Library.BookLent". It is for whom WritePublished is.
func WriteRenamed(ctx context.Context, db bun.IDB, name string, renamed map[string]string) error {
	if have, err := ReadRenamed(ctx, db, name); err == nil && maps.Equal(have, renamed) {
		return nil
	}
	value, err := json.Marshal(renamed)
	if err == nil {
		_, err = db.ExecContext(ctx, text("both", "setting_write"), renamedPrefix+name, string(value))
	}
	if err != nil {
		return fmt.Errorf("outbox: write renamed events of context %s: %w", name, err)
	}
	return nil
}

// ReadRenamed is what WriteRenamed has noted.
func ReadRenamed(ctx context.Context, db bun.IDB, name string) (renamed map[string]string, err error) {
	value, found, err := readSetting(ctx, db, renamedPrefix+name)
	if err == nil && found {
		err = json.Unmarshal([]byte(value), &renamed)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: read renamed events of context %s: %w", name, err)
	}
	return renamed, nil
}

// ReadPublished are the names that WritePublished has noted.
func ReadPublished(ctx context.Context, db bun.IDB, name string) (events []string, err error) {
	value, found, err := readSetting(ctx, db, publishedPrefix+name)
	if err == nil && !found {
		return nil, fmt.Errorf("outbox: the database does not know which events of context %s are published; its program writes them down when it starts its engine, or with engine.Migrate", name)
	}
	if err == nil {
		err = json.Unmarshal([]byte(value), &events)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: read published events of context %s: %w", name, err)
	}
	return events, nil
}
