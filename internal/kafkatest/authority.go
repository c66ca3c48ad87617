package kafkatest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority is a certificate that signs itself and others, in files of a directory.
type Authority struct {
	Pair tls.Certificate
	dir  string
}

// NewAuthority writes ca.crt and ca.key.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	a.Pair = a.Certify(t, "ca", nil)
	return a
}

// Certify writes name.crt and name.key, for 127.0.0.1 and kafka.test; by is nil for a
// certificate that signs itself.
func (a *Authority) Certify(t testing.TB, name string, by *tls.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, // Java wants an issuer's name.
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"kafka.test"},
		IsCA: by == nil, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, err = x509.ParseCertificate(by.Certificate[0])
		require.NoError(t, err)
		signer = by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	a.Write(t, name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.Write(t, name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// pem is a server's certificate with its key, in one.
func (a *Authority) pem(t testing.TB) string {
	t.Helper()
	a.Certify(t, "server", &a.Pair)
	var all []byte
	for _, name := range []string{"server.key", "server.crt"} {
		text, err := os.ReadFile(a.File(name))
		require.NoError(t, err)
		all = append(all, text...)
	}
	return string(all)
}

// File is the path of a file of the authority's directory.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// Write writes a file there.
func (a *Authority) Write(t testing.TB, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(a.File(name), content, 0o600))
}
