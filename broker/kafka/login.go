package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// TLS is how connections are encrypted. Its files are read again for each
// connection, so that renewed ones need no restart.
type TLS struct {
	Enabled    bool   `yaml:"enabled"`     // Needed only if nothing else is given.
	CA         string `yaml:"ca"`          // A file of certificates that are trusted. "": the system's.
	Cert       string `yaml:"cert"`        // A file with the certificate to log in with. "": none.
	Key        string `yaml:"key"`         // The file with the key of Cert.
	ServerName string `yaml:"server_name"` // Whom the server's certificate is for. "": the address's host.
}

// config is nil for plain connections. An error begins with its key.
func (t TLS) config(host string) (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t.ServerName != "" {
		conf.ServerName = t.ServerName
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("ca: %w; give a file of PEM certificates, or leave it out for the system's", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: %s has no certificate: give a file of PEM certificates", t.CA)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("cert and tls.key belong together: give both, or neither")
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("cert: %w; give PEM files of a certificate and of its key", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// SASL is how the program logs in.
type SASL struct {
	Mechanism    string `yaml:"mechanism"` // plain, scram-sha-256 or scram-sha-512.
	User         string `yaml:"user"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"password_file"` // Instead of Password; read again at each login.
}

// String is without the password.
func (s SASL) String() string { return strings.TrimSpace(s.Mechanism + " " + s.User) }

// GoString is without the password, too.
func (s SASL) GoString() string { return fmt.Sprintf("%q", s.String()) }

func (s SASL) password() (string, error) {
	if s.PasswordFile == "" {
		return s.Password, nil
	}
	b, err := os.ReadFile(s.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// mechanism is nil for none. An error begins with its key.
func (s SASL) mechanism() (sasl.Mechanism, error) {
	switch {
	case s == (SASL{}):
		return nil, nil
	case s.User == "":
		return nil, errors.New("user is missing: say who logs in, or leave sasl out")
	case s.Password != "" && s.PasswordFile != "":
		return nil, errors.New("password and sasl.password_file are both given: leave one out")
	case s.Password == "" && s.PasswordFile == "":
		return nil, errors.New("password is missing: give it, or password_file")
	}
	auth := func(context.Context) (scram.Auth, error) {
		password, err := s.password()
		return scram.Auth{User: s.User, Pass: password}, err
	}
	switch s.Mechanism {
	case "plain":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := s.password()
			return plain.Auth{User: s.User, Pass: password}, err
		}), nil
	case "scram-sha-256":
		return scram.Sha256(auth), nil
	case "scram-sha-512":
		return scram.Sha512(auth), nil
	}
	return nil, fmt.Errorf("mechanism is %q: use plain, scram-sha-256 or scram-sha-512", s.Mechanism)
}
