package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/broker"
)

// settings is the part of a file that an adapter understands.
type settings struct {
	file, path string
	node       *yaml.Node
	generic    []string // keys that are not the adapter's
	vars       *variables
	logger     *slog.Logger
}

var (
	_ broker.Settings = settings{}
	_ broker.Logging  = settings{}
)

// Logger implements [broker.Logging].
func (s settings) Logger() *slog.Logger { return s.logger }

// Decode fills in into, a pointer to a struct with yaml tags, from the file and
// from variables such as WAYBILL_PROVIDERS_DEFAULT_DSN. Keys that into doesn't
// have are mistakes. What nothing is said about keeps its value.
func (s settings) Decode(into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("config: %s: settings go into a pointer to a struct, not into %T", s.path, into)
	}
	d := &decoder{file: s.file, vars: s.vars, where: map[string]string{}}
	d.structure(s.node, v.Elem(), s.path, "", s.generic...)
	return errors.Join(d.errs...)
}

func value(pointer any) reflect.Value { return reflect.ValueOf(pointer).Elem() }

// flatten returns the effective settings of each of all, by the name that a
// key's variable has after its entry's, so that entries can be compared.
func flatten[T any](all []T, of func(T) settings) []map[string]string {
	var flat []map[string]string
	for _, t := range all {
		s, m := of(t), map[string]string{}
		for i := 0; i+1 < len(s.node.Content); i += 2 {
			if k := s.node.Content[i].Value; !slices.Contains(s.generic, k) {
				spread(m, suffix(k), s.node.Content[i+1])
			}
		}
		flat = append(flat, m)
	}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		// A variable of brokers.partner_eu is none of brokers.partner.
		owner, longest := -1, ""
		for i, t := range all {
			if prefix := variable(of(t).path) + "_"; strings.HasPrefix(name, prefix) && len(prefix) > len(longest) {
				owner, longest = i, prefix
			}
		}
		if owner < 0 {
			continue
		}
		key := strings.TrimPrefix(name, longest)
		if !slices.ContainsFunc(of(all[owner]).generic, func(g string) bool { return suffix(g) == key }) {
			flat[owner][key] = value
		}
	}
	return flat
}

func suffix(key string) string { return strings.TrimPrefix(variable(key), "WAYBILL_") }

// spread writes a node's values into flat, a list as words between commas.
func spread(flat map[string]string, name string, n *yaml.Node) {
	n = resolve(n)
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			spread(flat, name+"_"+suffix(n.Content[i].Value), n.Content[i+1])
		}
	case n.Kind == yaml.SequenceNode:
		var all []string
		for _, item := range n.Content {
			all = append(all, item.Value)
		}
		flat[name] = strings.Join(all, ",")
	default:
		flat[name] = n.Value
	}
}

// samePlace says whether two brokers of a kind are one and the same, whatever
// else their settings say: one address in common is enough.
func samePlace(a, b map[string]string) bool {
	for _, k := range []string{"ADDRESSES", "URL"} {
		there := words(b[k])
		if slices.ContainsFunc(words(a[k]), func(address string) bool { return slices.Contains(there, address) }) {
			return true
		}
	}
	if a["EMBEDDED"] != "" && b["EMBEDDED"] != "" && filepath.Clean(a["EMBEDDED"]) == filepath.Clean(b["EMBEDDED"]) {
		return true
	}
	return maps.Equal(a, b)
}

// words are what a list says, out of a file or out of a variable, which may be words between
// commas or YAML.
func words(list string) (all []string) {
	if strings.HasPrefix(list, "[") && yaml.Unmarshal([]byte(list), &all) == nil {
		return all
	}
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
