package outboxdb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/uptrace/bun"
)

const (
	// publishedPrefix stands before the context's name in outbox_settings.
	publishedPrefix = "published:"
	// renamedPrefix, too.
	renamedPrefix = "renamed:"
)

// WritePublished notes which events of a context are published, by their short
// names, for a back-fill by `waybill outbox backfill`, which knows no domain.
func WritePublished(ctx context.Context, db bun.IDB, name string, events []string) error {
	if have, err := ReadPublished(ctx, db, name); err == nil && slices.Equal(have, events) {
		return nil
	}
	value, err := json.Marshal(append([]string{}, events...))
	if err == nil {
		_, err = db.ExecContext(ctx, text("both", "setting_write"), publishedPrefix+name, string(value))
	}
	if err != nil {
		return fmt.Errorf("outbox: write published events of context %s: %w", name, err)
	}
	return nil
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
