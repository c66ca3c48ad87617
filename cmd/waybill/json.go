package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf16"

	"github.com/waybill-go/waybill/internal/jsondepth"
)

// writeJSON is for programs, and does a terminal no harm either: whatever it might obey is
// escaped, which leaves the JSON's meaning as it is.
func writeJSON(stdout out, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if jsondepth.Exceeds(text, jsondepth.Limit) { // Indented, it is larger by the square of that.
		b.Write(text)
	} else if err := json.Indent(&b, text, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = stdout.Write(plainJSON(b.Bytes()))
	return err
}

// plainJSON has only characters that are printed; others are only in strings, but for line
// breaks between the values.
func plainJSON(text []byte) []byte {
	plain := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch high, low := utf16.EncodeRune(r); {
		case r == '\n' || unicode.IsPrint(r):
			plain = append(plain, string(r)...)
		case high != unicode.ReplacementChar:
			plain = fmt.Appendf(plain, `\u%04x\u%04x`, high, low)
		default:
			plain = fmt.Appendf(plain, `\u%04x`, r)
		}
	}
	return plain
}
