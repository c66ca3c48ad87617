package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/uow"
)

// evil is what a partner may send as an id: colors, a title, a control sequence of one character,
// text from right to left, and lines.
const evil = "i\x1b[31m\x1b]0;t\x07\u009b2J\u202e\u2028\r\n\t\x7f\U000e0041'\\"

// What a message has brought moves no cursor, and a command that is shown can be typed.
func TestProcesses_AnIDThatATerminalWouldObey(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string, p uow.Provider) {
		file := configured(t, "default: "+provider)
		beginProcess(t, p, evil, time.Hour)
		beginProcess(t, p, evil+"2", time.Minute)
		run := func(args ...string) result {
			r := waybill(t, append([]string{"--config", file}, args...)...)
			harmless := func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
			require.Empty(t, strings.Map(func(r rune) rune {
				if harmless(r) {
					return -1
				}
				return r
			}, r.stdout+r.stderr), "%q", args)
			return r
		}
		shown := run("processes", "show", lending, evil)
		_, command, ok := strings.Cut(shown.stdout, "\nwaybill processes end ")
		require.True(t, ok, shown.stdout)
		command, _, ok = strings.Cut(command, "   ends it")
		require.True(t, ok)
		typed := exec.CommandContext(t.Context(), "bash", "-c", `"$0" --config "$1" processes end --dry-run `+command, binary, file)
		text, err := typed.CombinedOutput()
		require.NoError(t, err, "%s", text)
		require.Equal(t, "end 1 process, with their timers\n", string(text))

		run("processes", "list", "--limit", "1")
		run("processes", "wake", lending, evil, "--timer", evil, "--yes")
		run("subscriptions", "retire", evil, "--yes")
		run("projections", "skip", evil, "--build", "1", "--position", "1", "--yes")
		var list struct {
			Providers map[string]struct {
				Processes []struct{ ID string }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(run("processes", "list", "--json").stdout), &list))
		require.Equal(t, evil, list.Providers["default"].Processes[0].ID)
	})
}

// A rate that nobody waits for doesn't end in the past.
func TestLastOf(t *testing.T) {
	require.Equal(t, time.Second, lastOf(11, 10))
	require.Equal(t, 1_000_000_000*time.Second, lastOf(30_000, 1e-12))
}

// What is nested deep isn't indented: it would be larger by the square of that.
func TestWriteJSON_WhatIsNestedDeepStaysSmall(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	var b bytes.Buffer
	require.NoError(t, writeJSON(out{&outlet{Writer: &b}}, map[string]json.RawMessage{"payload": json.RawMessage(deep)}))
	require.Equal(t, `{"payload":`+deep+"}\n", b.String())
	b.Reset()
	require.NoError(t, writeJSON(out{&outlet{Writer: &b}}, map[string]int{"a": 1}))
	require.Equal(t, "{\n  \"a\": 1\n}\n", b.String())
}
