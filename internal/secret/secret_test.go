package secret

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// S11: whatever is written as a URL or a DSN, its password is not shown.
func TestAURLIsShownWithoutItsPassword(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "",
		"nats://127.0.0.1:4222":          "nats://127.0.0.1:4222",
		"nats://user:hunter22@host:4222": "nats://user:***@host:4222",
		"nats://tokenhunter22@host:4222": "nats://***@host:4222",
		"nats://u:hunter22@h1:1,nats://v:hunter22@h2:2":         "nats://u:***@h1:1,nats://v:***@h2:2",
		"nats://u:hunter22@h1:1, tls://v:hunter22@h2:2":         "nats://u:***@h1:1, tls://v:***@h2:2",
		"nats://u:hunter22@h1:1,h2:2":                           "nats://u:***@h1:1,h2:2",
		"nats://u:hun/ter@22@h1":                                "nats://u:***@h1",
		"nats://u:hun ter,22@h1":                                "nats://u:***@h1",
		"postgres://waybill@127.0.0.1:5432/orders":              "postgres://waybill@127.0.0.1:5432/orders",
		"postgres://waybill:hunter22@h/db?sslmode=disable":      "postgres://waybill:***@h/db?sslmode=disable",
		"postgres://h/db?user=u&password=hunter22&sslmode=none": "postgres://h/db?user=u&password=***&sslmode=none",
		"host=h user=u password=hunter22 dbname=d":              "host=h user=u password=*** dbname=d",
		`host=h password = 'hunter \' 22' dbname=d`:             "host=h password = *** dbname=d",
		"host=h sslpassword='hunter22":                          "host=h sslpassword=***",
	} {
		require.Equal(t, want, URL(in))
	}
}

// S11: neither is it in an error that somebody else made of one.
func TestAnErrorIsShownWithoutPasswords(t *testing.T) {
	for in, want := range map[string]string{
		`dial nats://u:hunter22@h:4222: refused`:            `dial nats://u:***@h:4222: refused`,
		`parse "nats://u:hunter22@h:x": invalid port ":x"`:  `parse "nats://u:***@h:x": invalid port ":x"`,
		"see https://example.org/docs, or write to me@here": "see https://example.org/docs, or write to me@here",
		"connect with password=hunter22 failed":             "connect with password=*** failed",
	} {
		require.Equal(t, want, Text(in))
		require.EqualError(t, Error(errors.New(in)), want)
	}

	dsn := strings.Join([]string{"nats://u", "hun ter%2022@h"}, ":")
	_, err := url.Parse(dsn)
	require.ErrorContains(t, err, "hun ter")
	require.NotContains(t, Error(err, dsn).Error(), "hun ter")
	require.NotContains(t, Text(`user "u" with "hun ter 22" was refused`, dsn), "hun ter")

	require.NoError(t, Error(nil))
	require.NoError(t, ErrorOf(nil, nil))
	settings := map[string]string{"SASL_PASSWORD": "hunter22", "SASL_USER": "ann", "URL": "nats://ann:password22@h", "TOKEN": ""}
	require.EqualError(t, ErrorOf(errors.New(`ann with "hunter22" or "password22" at nats://ann:password22@h`), settings), `ann with "***" or "***" at nats://ann:***@h`)
	require.ErrorIs(t, Error(fmt.Errorf("read: %w", io.EOF), dsn), io.EOF)
}
