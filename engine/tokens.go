package engine

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"unicode"
)

// Role is what a token is good for.
type Role string

const (
	// RoleRead reads how everything is, without what messages carry or brought about:
	// no keys, no ids of streams, no texts of handlers' and rows' errors.
	RoleRead Role = "read"
	// RoleOperate reads those, too, and acts.
	RoleOperate Role = "operate"
)

// Token is one of those that a [Server] takes. Several are good at the same time.
type Token struct {
	// Name says whose it is. It stands before the actor in the record of what was
	// done, and in the log. Letters, digits, "-", "_" and "." only.
	Name string
	// Role is what it is good for. Required.
	Role Role
	// Token is the token itself, of at least 16 bytes, or File names a file that has
	// it, or several, one a line. The file is read for each request, so that what it
	// says now counts.
	Token string
	File  string
}

// String keeps the token out of what is printed.
func (t Token) String() string { return fmt.Sprintf("token %s (%s)", t.Name, t.Role) }

const (
	minToken     = 16
	maxTokenFile = 64 << 10
	// shorthand is the name of Server.Token.
	shorthand = "token"
)

var tokenName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// tokens are all of a server, the shorthand first.
func (s Server) tokens() []Token {
	if s.Token == "" {
		return s.Tokens
	}
	return append([]Token{{Name: shorthand, Role: RoleOperate, Token: s.Token}}, s.Tokens...)
}

// checkTokens returns what is wrong with the tokens, as far as that can be known
// without their files. No error has a token in it.
func (s Server) checkTokens() []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Token != "" {
		if err := checkToken(s.Token); err != nil {
			fail("server.token %w", err)
		}
	}
	names, secrets := map[string]bool{shorthand: s.Token != ""}, map[string]bool{s.Token: s.Token != ""}
	for i, t := range s.Tokens {
		path := fmt.Sprintf("server.tokens[%d]", i)
		switch {
		case !tokenName.MatchString(t.Name):
			fail("%s.name is %q: say whose token it is in letters, digits, - _ and .", path, t.Name)
		case names[t.Name]:
			fail("%s.name is %q, which another token has: give each its own, so that the record says whose it was", path, t.Name)
		}
		if t.Role != RoleRead && t.Role != RoleOperate {
			fail("%s.role is %q: read or operate", path, t.Role)
		}
		switch err := checkToken(t.Token); {
		case (t.Token == "") == (t.File == ""):
			fail("%s has either token or file: write one of them", path)
		case t.File != "":
		case err != nil:
			fail("%s.token %w", path, err)
		case secrets[t.Token]:
			fail("%s.token is that of another name: make one for each", path)
		}
		names[t.Name], secrets[t.Token] = true, true
	}
	return errs
}

// checkToken says what is wrong with a token, and not what it is.
func checkToken(token string) error {
	switch {
	case len(token) < minToken:
		return fmt.Errorf("has %d bytes, which can be guessed: at least %d; `openssl rand -hex 16` makes one", len(token), minToken)
	case strings.TrimSpace(token) != token || strings.ContainsFunc(token, unicode.IsControl):
		return errors.New("begins or ends with a space, or has a control character, which no header can carry: remove it")
	}
	return nil
}

// readTokens reads a file of tokens. Those that are good come back also where
// another line is not.
func readTokens(file string) (tokens []string, others bool, err error) {
	f, err := os.Open(file) //nolint:gosec // the configuration names it
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	// Windows has rights of another kind, and shows none of them here.
	mode := info.Mode().Perm()
	if runtime.GOOS != "windows" && mode&0o002 != 0 {
		return nil, false, fmt.Errorf("%s can be written by everybody on this machine (mode %04o): chmod o-rwx it", file, mode)
	}
	others = runtime.GOOS != "windows" && mode&0o004 != 0
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, others, err
	}
	if len(text) > maxTokenFile {
		return nil, others, fmt.Errorf("%s is longer than %d bytes: it is to hold tokens, one a line", file, maxTokenFile)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if wrong := checkToken(line); wrong != nil {
			err = errors.Join(err, fmt.Errorf("%s: line %d %w", file, n, wrong))
			continue
		}
		tokens = append(tokens, line)
	}
	if err == nil && len(tokens) == 0 {
		err = fmt.Errorf("%s is empty: write a token into it, or several, one a line", file)
	}
	return tokens, others, err
}

// keyring knows the tokens. It is safe for concurrent use.
type keyring struct {
	keys []Token
	log  *slog.Logger

	mu   sync.Mutex
	told map[string]string // what was last said of a file, by name
}

// newKeyring also reads the files, so that a wrong one shows at the start.
func newKeyring(keys []Token, log *slog.Logger) (*keyring, []error) {
	k := &keyring{keys: keys, log: log, told: map[string]string{}}
	var errs []error
	for _, t := range keys {
		if t.File == "" {
			continue
		}
		_, others, err := readTokens(t.File)
		if err != nil {
			errs = append(errs, fmt.Errorf("the file of token %q: %w", t.Name, err))
		}
		if others {
			log.Warn("a file of tokens can be read by everybody on this machine: chmod o-rwx it, unless it is mounted so for this process alone",
				"token", t.Name, "file", t.File)
		}
	}
	return k, errs
}

func (k *keyring) empty() bool { return len(k.keys) == 0 }

// find says whose a token is. It compares it with all, in a time that tells
// nothing about any of them, nor their lengths.
func (k *keyring) find(token string) (of Token, ok bool) {
	got := sha256.Sum256([]byte(token))
	for _, key := range k.keys {
		for _, secret := range k.secrets(key) {
			want := sha256.Sum256([]byte(secret))
			if subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
				of, ok = key, true
			}
		}
	}
	return of, ok
}

// secrets are what is good for a key now: nothing, if its file was removed.
func (k *keyring) secrets(of Token) []string {
	if of.File == "" {
		return []string{of.Token}
	}
	found, _, err := readTokens(of.File)
	text := ""
	if err != nil {
		text = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.told[of.Name] != text {
		if k.told[of.Name] = text; err != nil {
			k.log.Error("a file of tokens can't be used: who has its tokens is refused", "token", of.Name, "error", err)
		} else {
			k.log.Info("a file of tokens can be used again", "token", of.Name)
		}
	}
	return found
}
