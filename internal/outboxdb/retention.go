package outboxdb

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/outbox"
)

// kept is the setting "retention", in seconds; nil is for ever. By it the view says
// when rows expire, and people's clean-up goes.
type kept struct {
	Published   *float64 `json:"published"`
	Abandoned   *float64 `json:"abandoned"`
	MaxAttempts int      `json:"max_attempts"`
}

// WriteRetention notes, for people, how long finished rows stay and how often a row is
// tried. It writes only what is new.
func (s *Store) WriteRetention(ctx context.Context, c outbox.Config) error {
	c = c.WithDefaults()
	seconds := func(d time.Duration) *float64 {
		if d < 0 {
			return nil
		}
		n := d.Seconds()
		return &n
	}
	k := kept{Published: seconds(c.Retention.Published), Abandoned: seconds(c.Retention.Abandoned), MaxAttempts: c.Retry.MaxAttempts}
	if c.Retention.Delete {
		k.Published = new(float64)
	}
	value, err := json.Marshal(k)
	if err == nil {
		_, err = s.db.ExecContext(ctx, s.text("setting_write"), "retention", string(value))
	}
	if err != nil {
		return fmt.Errorf("outbox: write how long rows are kept: %w", err)
	}
	return nil
}

// Kept is how long finished rows stay; negative: for ever.
type Kept struct{ Published, Abandoned time.Duration }

// ReadRetention is what [Store.WriteRetention] wrote last, or the defaults.
func ReadRetention(ctx context.Context, db bun.IDB) (r Kept, err error) {
	defaults := outbox.Config{}.WithDefaults().Retention
	r.Published, r.Abandoned = defaults.Published, defaults.Abandoned
	value, found, err := readSetting(ctx, db, "retention")
	if err == nil && !found {
		return r, nil
	}
	var k kept
	if err == nil {
		err = json.Unmarshal([]byte(value), &k)
	}
	if err != nil {
		return r, fmt.Errorf("outbox: read from outbox_settings how long rows are kept: %w", err)
	}
	duration := func(seconds *float64) time.Duration {
		if seconds == nil {
			return -1
		}
		return time.Duration(*seconds * float64(time.Second))
	}
	r.Published, r.Abandoned = duration(k.Published), duration(k.Abandoned)
	return r, nil
}
