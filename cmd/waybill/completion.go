package main

import (
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: bash, zsh or fish."`
}

func (c completionCmd) Help() string {
	return `In ~/.bashrc:

	source <(waybill completion bash)

In ~/.zshrc, behind compinit:

	source <(waybill completion zsh)

For fish, once:

	waybill completion fish > ~/.config/fish/completions/waybill.fish`
}

func (c completionCmd) Run(k *kong.Context, stdout out) error {
	return completions.ExecuteTemplate(stdout, c.Shell, nodes(k.Model.Node, ""))
}

// node is a command as a shell completes it.
type node struct {
	Path     string // " outbox list"; "": the program itself
	Commands []word
	Flags    []flag
}

// word is something to be completed, with what it is for.
type word struct{ Name, Help string }

type flag struct {
	word
	Value  bool // takes one
	Values []string
	File   bool // its value is one
}

// nodes are a command and those below it.
func nodes(n *kong.Node, path string) []node {
	self := node{Path: path}
	for _, f := range n.Flags {
		one := flag{word: word{f.Name, brief(f.Help)}, Value: !f.IsBool(), File: f.Name == "config" || f.Name == "dsn"}
		if f.Enum != "" {
			one.Values = slices.DeleteFunc(strings.Split(f.Enum, ","), func(v string) bool { return v == "" })
		}
		self.Flags = append(self.Flags, one)
	}
	for _, p := range n.Positional {
		if p.Enum != "" {
			for value := range strings.SplitSeq(p.Enum, ",") {
				self.Commands = append(self.Commands, word{value, ""})
			}
		}
	}
	all := []node{}
	for _, child := range n.Children {
		self.Commands = append(self.Commands, word{child.Name, brief(child.Help)})
		all = append(all, nodes(child, path+" "+child.Name)...)
	}
	return append([]node{self}, all...)
}

// brief is the first sentence of a help text.
func brief(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(strings.SplitN(first, ": ", 2)[0], ".")
}

var completions = template.Must(template.New("").Funcs(template.FuncMap{
	"quote":  func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" },
	"fish":   func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" },
	"join":   func(s []string) string { return strings.Join(s, " ") },
	"escape": func(s string) string { return strings.ReplaceAll(s, ":", `\:`) },
	// pattern is the shell's pattern for a flag of a command: one of the program
	// itself stands behind any.
	"pattern": func(path string, f flag) string {
		if path == "" {
			return fmt.Sprintf(`*" --%s"`, f.Name)
		}
		return fmt.Sprintf(`"%s --%s"`, path, f.Name)
	},
}).Parse(`
{{- define "walk"}}{{/* $at becomes the command, $value the flag that has no value yet; the caller has set $word */}}
    if [[ -n $value ]]; then value=; continue; fi
    case "$at $word" in
{{- range .}}{{if .Path}}
      {{quote .Path}}) at="$at $word" ;;{{end}}{{end}}
{{- range $n := .}}{{range .Flags}}{{if .Value}}
      {{pattern $n.Path .}}) value=$word ;;{{end}}{{end}}{{end}}
    esac
{{- end -}}

{{- define "bash" -}}
# waybill completion bash
_waybill() {
  local cur=${COMP_WORDS[COMP_CWORD]} at= value= words= word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $word == "=" ]] && continue
{{template "walk" .}}
  done
  [[ $cur == "=" ]] && cur=
  if [[ -n $value ]]; then
    case "$at $value" in
{{- range $n := .}}{{range .Flags}}{{if .File}}
      {{pattern $n.Path .}}) compopt -o filenames 2>/dev/null; local IFS=$'\n'; COMPREPLY=($(compgen -f -- "$cur")); return ;;
{{- else if .Values}}
      {{pattern $n.Path .}}) words={{quote (join .Values)}} ;;{{end}}{{end}}{{end}}
    esac
  elif [[ $cur == -* ]]; then
    words={{range .}}{{if not .Path}}{{range .Flags}}"--{{.Name}} "{{end}}{{end}}{{end}}
    case $at in
{{- range .}}{{if and .Path .Flags}}
      {{quote .Path}}) words+='{{range .Flags}}--{{.Name}} {{end}}' ;;{{end}}{{end}}
    esac
  else
    case $at in
{{- range .}}{{if .Commands}}
      {{quote .Path}}) words='{{range .Commands}}{{.Name}} {{end}}' ;;{{end}}{{end}}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _waybill waybill
{{end -}}

{{- define "zsh" -}}
#compdef waybill
_waybill() {
  local at= value= word i
  local -a found
  for ((i = 2; i < CURRENT; i++)); do
    word=$words[i]
{{template "walk" .}}
  done
  if [[ -z $value && $PREFIX == --*=* ]]; then
    value=${PREFIX%%\=*}
    compset -P '*='
  fi
  if [[ -n $value ]]; then
    case "$at $value" in
{{- range $n := .}}{{range .Flags}}{{if .File}}
      {{pattern $n.Path .}}) _files ;;
{{- else if .Values}}
      {{pattern $n.Path .}}) compadd -- {{join .Values}} ;;{{end}}{{end}}{{end}}
    esac
    return
  fi
  if [[ $PREFIX == -* ]]; then
    found=({{range .}}{{if not .Path}}{{range .Flags}}
      {{quote (printf "--%s:%s" .Name (escape .Help))}}{{end}}{{end}}{{end}}
    )
    case $at in
{{- range .}}{{if and .Path .Flags}}
      {{quote .Path}}) found+=({{range .Flags}}
        {{quote (printf "--%s:%s" .Name (escape .Help))}}{{end}}
      ) ;;{{end}}{{end}}
    esac
    _describe flag found
    return
  fi
  case $at in
{{- range .}}{{if .Commands}}
    {{quote .Path}}) found=({{range .Commands}}
      {{quote (printf "%s:%s" .Name (escape .Help))}}{{end}}
    ) ;;{{end}}{{end}}
  esac
  _describe command found
}
if [[ $funcstack[1] == _waybill ]]; then _waybill "$@"; else compdef _waybill waybill; fi
{{end -}}

{{- define "fish" -}}
# waybill completion fish
function __waybill_at
    set -l at
    set -l value
    for word in (commandline -opc)[2..]
        if test -n "$value"
            set value
            continue
        end
        switch "$at $word"
{{- range .}}{{if .Path}}
            case {{fish .Path}}
                set at "$at $word"{{end}}{{end}}
{{- range $n := .}}{{range .Flags}}{{if .Value}}
            case {{if $n.Path}}{{fish (printf "%s --%s" $n.Path .Name)}}{{else}}{{fish (printf "* --%s" .Name)}}{{end}}
                set value $word{{end}}{{end}}{{end}}
        end
    end
    test "$at" = "$argv[1]"
end
complete -c waybill -f
{{range $n := .}}{{$if := printf "-n '__waybill_at \"%s\"' " .Path}}{{range .Commands}}complete -c waybill {{$if}}-a {{.Name}} -d {{fish .Help}}
{{end}}{{range .Flags}}complete -c waybill {{if $n.Path}}{{$if}}{{end}}-l {{.Name}} {{if .File}}-rF {{else if .Value}}-x {{end}}{{if .Values}}-a {{fish (join .Values)}} {{end}}-d {{fish .Help}}
{{end}}{{end}}{{end}}`))
