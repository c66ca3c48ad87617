package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill/broker"
)

// directory is where the server writes, as it found it. Where that was removed, or something else
// stands in its place, the server writes on to files without a name, acknowledges, and the next
// start finds nothing of it.
type directory struct {
	path  string
	parts map[string]fs.FileInfo // By path: the lock, and the server's own directory.
}

// found notes what there is.
func found(path string) (directory, error) {
	d := directory{path, map[string]fs.FileInfo{}}
	for _, part := range []string{filepath.Join(path, "lock"), filepath.Join(path, "jetstream")} {
		info, err := os.Stat(part)
		if err != nil {
			return directory{}, err
		}
		d.parts[part] = info
	}
	return d, nil
}

// check says whether it is still there.
func (d directory) check() error {
	for part, was := range d.parts {
		is, err := os.Stat(part)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // whatever it is, it can't be looked at
		}
		if err != nil || !os.SameFile(was, is) {
			return fmt.Errorf("embedded: data directory %s was removed, replaced or emptied while the server has it open, and what it takes now would be lost:"+
				" end this process, put back what was there, or a backup, and start it again", d.path)
		}
	}
	return nil
}

// Publish is that of [nats.Broker], as long as the server's directory is there. Nothing that is
// written elsewhere counts as stored.
func (b *Broker) Publish(ctx context.Context, messages []broker.Message) error {
	if err := b.dir.check(); err != nil {
		return broker.Scoped(broker.Unavailable, broker.ScopeBroker, err)
	}
	if err := b.Broker.Publish(ctx, messages); err != nil {
		return err
	}
	return broker.Classify(broker.Unknown, b.dir.check()) // it may have gone meanwhile
}
