package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/nats-io/nkeys"
)

// clientKey is the file in the data directory with the key that clients need.
const clientKey = "client.nk"

// key is the public part of the clients' key, and the file of its secret part,
// which is made where it is missing.
func key(dir string) (public, file string, err error) {
	file = filepath.Join(dir, clientKey)
	seed, err := os.ReadFile(file) //nolint:gosec // It is ours.
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeKey(file); err == nil {
			seed, err = os.ReadFile(file) //nolint:gosec // It is ours.
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("clients' key: %w", err)
	}
	if err := private(file); err != nil {
		return "", "", fmt.Errorf("clients' key: %w", err)
	}
	pair, err := nkeys.ParseDecoratedUserNKey(seed)
	if err != nil {
		return "", "", fmt.Errorf("clients' key: %s: %w: remove the file to have a new one made", file, err)
	}
	defer pair.Wipe()
	public, err = pair.PublicKey()
	return public, file, err
}

// makeKey writes a new key. A file that is there is whole.
func makeKey(file string) error {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return err
	}
	unfinished := file + ".new"
	if err := os.WriteFile(unfinished, append(seed, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, file)
}

// private refuses a file that others may read.
func private(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%s has mode %04o, so that others may have read it: remove it to have a new one made", file, mode)
	}
	return nil
}
