package main

import (
	"cmp"
	flags "flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

var update = flags.Bool("update", false, "write docs/reference/commands.md anew")

// The reference has every command with all its flags, as the program has them.
func TestReference_HasEveryCommand(t *testing.T) {
	const path = "../../docs/reference/commands.md"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, _, ok := strings.Cut(string(text), "\n## ")
	require.True(t, ok, "what is before the first command is written by hand")
	want := head + "\n" + reference(t)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
	}
	require.True(t, want == string(text) || *update, "docs/reference/commands.md is not what the program has: go test ./cmd/waybill -run TestReference -update")
}

// reference is all commands in the program's order.
func reference(t *testing.T) string {
	t.Helper()
	parser, err := kong.New(&cli{}, kong.Name("waybill"))
	require.NoError(t, err)
	var b strings.Builder
	section := func(title, help string, arguments []*kong.Positional, flags []*kong.Flag) {
		fmt.Fprintf(&b, "## %s\n\n%s\n", title, help)
		if len(arguments)+len(flags) == 0 {
			return
		}
		b.WriteString("\n| | default | |\n|---|---|---|\n")
		row := func(name string, v *kong.Value) {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(name, "|", `\|`), cmp.Or(quoted(v.Default), map[bool]string{true: "required"}[v.Required]), strings.ReplaceAll(v.Help, "|", `\|`))
		}
		for _, a := range arguments {
			row(a.Summary(), a)
		}
		for _, f := range flags {
			name := "--" + f.Name
			if !f.IsBool() {
				name += "=" + cmp.Or(f.PlaceHolder, strings.ToUpper(f.Name))
			}
			row(name, f.Value)
		}
	}
	section("Every command", "These flags go before or after the command.", nil, parser.Model.Flags)
	for _, c := range parser.Model.Leaves(true) {
		b.WriteString("\n")
		section("`waybill "+c.Path()+"`", c.Help, c.Positional, c.Flags)
	}
	return b.String()
}

func quoted(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

var (
	shell = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	words = regexp.MustCompile(`"([^"]*)"|'([^']*)'|(\S+)`)
)

// Every command that the documentation shows is one that the program takes.
func TestReference_CommandsOfTheDocumentation(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*/*.md")
	require.NoError(t, err)
	seen := 0
	for _, path := range append(paths, "../../README.md", "../../docs/tutorial.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, block := range shell.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(block[1]) {
				line, isOurs := strings.CutPrefix(strings.TrimSpace(line), "waybill ")
				if !isOurs {
					continue
				}
				line, _, _ = strings.Cut(line, " #")
				line, _, _ = strings.Cut(line, " > ")
				var args []string
				for _, m := range words.FindAllStringSubmatch(line, -1) {
					args = append(args, cmp.Or(m[1], m[2], m[3]))
				}
				parser, err := kong.New(&cli{}, kong.Name("waybill"))
				require.NoError(t, err)
				_, err = parser.Parse(args)
				require.NoError(t, err, "%s: waybill %s", path, line)
				seen++
			}
		}
	}
	require.Greater(t, seen, 10)
}
