// Package secret keeps passwords and tokens out of errors, logs and answers.
package secret

import (
	"net/url"
	"regexp"
	"strings"
)

// hidden stands for what is not shown.
const hidden = "***"

var (
	// named is what a setting is called that is a secret itself.
	named = regexp.MustCompile(`(?i)(password|passwd|passphrase|pwd|secret|token)$`)
	// next is where another URL of a list begins.
	next = regexp.MustCompile(`[,\s]\s*[A-Za-z][A-Za-z0-9+.-]*://`)
	// inText is a URL's part before its host, in the middle of a text. It ends with
	// the last @ of the word: a password may hold one.
	inText = regexp.MustCompile("([A-Za-z][A-Za-z0-9+.-]*)://([^\\s\"'`<>]*)@")
	// pair is a key with a value, as in a DSN or in a URL's query.
	pair = regexp.MustCompile(`(?i)\b(\w*(?:password|passwd|passphrase|pwd|secret|token))(\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&"'` + "`" + `]+)`)
)

// URL is a URL, several with commas between them, or a DSN of key=value pairs,
// without passwords and tokens: nats://user:***@host:4222.
func URL(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		one := s
		if at := next.FindStringIndex(s); at != nil {
			one = s[:at[0]+1]
		}
		b.WriteString(single(one))
		s = s[len(one):]
	}
	return b.String()
}

// single is one URL or DSN. Whatever stands before its last @ may belong to a
// password, also where that is written so that no URL comes of it.
func single(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if at := strings.LastIndex(rest, "@"); ok && at >= 0 {
		s = scheme + "://" + userinfo(scheme, rest[:at]) + rest[at:]
	}
	return pairs(s)
}

// userinfo is what stands before the host. A user alone is a token to NATS, and
// no secret to PostgreSQL.
func userinfo(scheme, s string) string {
	user, _, password := strings.Cut(s, ":")
	switch {
	case password:
		return user + ":" + hidden
	case strings.HasPrefix(strings.ToLower(scheme), "postgres"):
		return user
	}
	return hidden
}

func pairs(s string) string { return pair.ReplaceAllString(s, "${1}${2}"+hidden) }

// Text is a text, such as an error's, without the passwords of the URLs and DSNs
// that stand in it. What it was made from, if that is known, goes in of: parts of
// that are then found also where they stand alone.
func Text(text string, of ...string) string {
	for _, s := range of {
		if s == "" {
			continue
		}
		text = strings.ReplaceAll(text, s, URL(s))
		text = without(text, passwords(s))
	}
	return anywhere(text)
}

func without(text string, secrets []string) string {
	for _, s := range secrets {
		text = strings.ReplaceAll(text, s, hidden)
	}
	return text
}

// anywhere hides what looks like a password.
func anywhere(text string) string {
	text = inText.ReplaceAllStringFunc(text, func(found string) string {
		m := inText.FindStringSubmatch(found)
		return m[1] + "://" + userinfo(m[1], m[2]) + "@"
	})
	return pairs(text)
}

// shortest is the length of what is looked for by itself: less would be found
// everywhere.
const shortest = 4

// passwords are those of URLs and pairs, as they are written and as they are meant.
func passwords(s string) []string {
	var found []string
	add := func(p string) {
		if len(p) >= shortest {
			found = append(found, p)
		}
	}
	for len(s) > 0 {
		one := s
		if at := next.FindStringIndex(s); at != nil {
			one = s[:at[0]+1]
		}
		s = s[len(one):]
		if scheme, rest, ok := strings.Cut(one, "://"); ok {
			if at := strings.LastIndex(rest, "@"); at >= 0 {
				user, password, has := strings.Cut(rest[:at], ":")
				if !has && userinfo(scheme, user) == hidden {
					password = user
				}
				add(password)
				if plain, err := url.PathUnescape(password); err == nil {
					add(plain)
				}
			}
		}
		for _, m := range pair.FindAllStringSubmatch(one, -1) {
			add(strings.Trim(m[3], "'"))
		}
	}
	return found
}

// Error is err with the text that [Text] makes of its own. Nil stays nil.
func Error(err error, of ...string) error {
	if err == nil {
		return nil
	}
	return &hiding{err, func(text string) string { return Text(text, of...) }}
}

// ErrorOf is Error for what was made from settings, by their names: those that are
// secrets themselves, such as a password, are not shown either.
func ErrorOf(err error, settings map[string]string) error {
	if err == nil {
		return nil
	}
	var secrets, of []string
	for name, value := range settings {
		switch {
		case !named.MatchString(name):
			of = append(of, value)
		case len(value) >= shortest:
			secrets = append(secrets, value)
		}
	}
	return &hiding{err, func(text string) string { return Text(without(text, secrets), of...) }}
}

type hiding struct {
	err  error
	hide func(text string) string
}

func (h *hiding) Error() string { return h.hide(h.err.Error()) }
func (h *hiding) Unwrap() error { return h.err }
