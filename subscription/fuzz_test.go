package subscription_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/subscription"
)

// Whatever comes in is a message with an id, a type and JSON, or an error: it is never a
// panic, and never half a message.
func FuzzFormats(f *testing.F) {
	f.Add("content-type", "application/json", "ce_id", "1", "ce_specversion", "1.0", []byte(`{"a":1}`))
	f.Add("content-type", "application/cloudevents+json; charset=UTF-8", "", "", "", "", []byte(`{"specversion":"1.0","id":"e","source":"/psp","type":"t","data_base64":"e30=","n":2147483648}`))
	f.Add("Content-Type", "application/cloudevents-batch+json", "ce-type", "t", "CE_TYPE", "u", []byte(`[]`))
	f.Add("type", "Ordering.OrderPlaced.v1", "waybill-low", "7", "time", "yesterday", []byte(`{"data":{},"metadata":{"headers":{"id":"1","type":"t","time":"2026-01-02T03:04:05Z"},"extensions":{"a":1}}}`))
	f.Add("", "\xff", "\x00", "\x00", "ce_id", "\xff", []byte("[[[[[[[[[[[[[[[[[[[[[["))
	formats := map[string]subscription.Format{"waybill": subscription.Waybill(), "cloudevents": subscription.CloudEvents()}
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, name3, value3 string, body []byte) {
		m := broker.Message{ID: value3, Key: value2, Body: body, Headers: map[string]string{name1: value1, name2: value2, name3: value3}}
		for name, format := range formats {
			in, err := format(m)
			if err != nil {
				continue
			}
			require.NotEmpty(t, in.ID, name)
			require.NotEmpty(t, in.Type, name)
			require.True(t, json.Valid(in.Data), "%s: %q", name, in.Data)
		}
	})
}
