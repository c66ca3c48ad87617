package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decoder fills structs from YAML and the environment. Unlike the YAML library
// it refuses keys that a struct doesn't have, says where and which key was
// meant, and collects all mistakes.
type decoder struct {
	file string
	errs []error
	vars *variables
	// where says which line or variable a path's value was read from.
	where map[string]string
}

// mistake notes what is wrong with the value at path.
func (d *decoder) mistake(at, path, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("%s: %s %s", at, path, fmt.Sprintf(format, args...)))
}

// at is the place of a node: a line, or the variable that it was made from.
func (d *decoder) at(n *yaml.Node, variable string) string {
	if variable != "" {
		return variable
	}
	return fmt.Sprintf("%s:%d", d.file, n.Line)
}

// key is a field of a struct under its name in YAML.
type key struct {
	name  string
	index []int
	typ   reflect.Type
}

// keysOf lists the keys of a struct: the yaml tag, or the field's name in lower
// case. It knows "-" and ",inline", as the YAML library does, and leaves out what
// can't be written in a file.
func keysOf(t reflect.Type) []key {
	var keys []key
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported() || name == "-" || slices.Contains(unwritable, f.Type.Kind()):
		case options == "inline":
			for _, k := range keysOf(f.Type) {
				k.index = append([]int{f.Index[0]}, k.index...)
				keys = append(keys, k)
			}
		case name == "":
			keys = append(keys, key{strings.ToLower(f.Name), f.Index, f.Type})
		default:
			keys = append(keys, key{name, f.Index, f.Type})
		}
	}
	return keys
}

var unwritable = []reflect.Kind{reflect.Func, reflect.Chan, reflect.Pointer, reflect.Interface}

// gone are keys of earlier versions, and what to write now.
var gone = map[string]string{
	"outbox.workers": "leave it out; outbox.calls says how many calls of the broker a lane may have out at once",
}

// structure fills a struct from a mapping. Keys in others are somebody else's:
// they are neither read nor refused.
func (d *decoder) structure(n *yaml.Node, into reflect.Value, path, variable string, others ...string) {
	nodes := map[string]*yaml.Node{}
	keys := keysOf(into.Type())
	names := slices.Clone(others)
	for _, k := range keys {
		names = append(names, k.name)
	}
	for k, v := range d.pairs(n, path, variable) {
		if slices.Contains(names, k.Value) {
			nodes[k.Value] = v
			continue
		}
		if now, ok := gone[join(path, k.Value)]; ok {
			d.mistake(d.at(k, variable), join(path, k.Value), "was removed: %s", now)
			continue
		}
		d.mistake(d.at(k, variable), join(path, k.Value), "is not a known key; %s", nearest(k.Value, names))
	}
	for _, k := range keys {
		field, p := into.FieldByIndex(k.index), join(path, k.name)
		if k.typ.Kind() == reflect.Struct {
			d.structure(nodes[k.name], field, p, variable)
			continue
		}
		v, from := nodes[k.name], variable
		if value, name, ok := d.vars.override(p); ok && from == "" && k.typ != reflect.TypeFor[[]entry]() {
			v, from = d.fromVariable(value, name, p, k.typ), name
		}
		if v != nil {
			d.where[p] = d.at(v, from)
			d.value(v, field, p, from)
		}
	}
}

// pairs yields the keys and values of a mapping. A missing one has none.
func (d *decoder) pairs(n *yaml.Node, path, variable string) func(yield func(k, v *yaml.Node) bool) {
	return func(yield func(k, v *yaml.Node) bool) {
		n = resolve(n)
		if n == nil {
			return
		}
		if n.Kind != yaml.MappingNode {
			d.mistake(d.at(n, variable), orFile(path), "must hold keys with values, such as `key: value`")
			return
		}
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if line, twice := seen[k.Value]; twice {
				d.mistake(d.at(k, variable), join(path, k.Value), "is written twice, first in line %d", line)
				continue
			}
			seen[k.Value] = k.Line
			if !yield(k, n.Content[i+1]) {
				return
			}
		}
	}
}

// resolve follows an alias, and turns an empty value into none.
func resolve(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || n.Kind == 0 || n.ShortTag() == "!!null" {
		return nil
	}
	return n
}

// shortcut is a struct that may also be written as a single word.
type shortcut interface{ fromWord(word string) }

// value fills one value that is not a plain struct.
func (d *decoder) value(n *yaml.Node, into reflect.Value, path, variable string) {
	if n = resolve(n); n == nil {
		return
	}
	at := d.at(n, variable)
	if into.Type() == reflect.TypeFor[[]entry]() {
		d.entries(n, into, path, variable)
		return
	}
	if s, ok := reflect.TypeAssert[shortcut](into.Addr()); ok && n.Kind == yaml.ScalarNode {
		s.fromWord(n.Value)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.structure(n, into, path, variable)
		return
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.mistake(at, path, "must be a list, such as [a, b]")
			return
		}
		into.Set(reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			p := fmt.Sprintf("%s[%d]", path, i)
			d.where[p] = d.at(item, variable)
			d.value(item, into.Index(i), p, variable)
		}
		return
	case reflect.Map:
		into.Set(reflect.MakeMap(into.Type()))
		for k, v := range d.pairs(n, path, variable) {
			element := reflect.New(into.Type().Elem()).Elem()
			d.value(v, element, join(path, k.Value), variable)
			into.SetMapIndex(reflect.ValueOf(k.Value), element)
		}
		return
	}
	if n.Kind != yaml.ScalarNode {
		d.mistake(at, path, "must be a single value")
		return
	}
	d.scalar(n, into, path, at)
}

func (d *decoder) scalar(n *yaml.Node, into reflect.Value, path, at string) {
	var ok bool
	switch {
	case into.Type() == reflect.TypeFor[time.Duration]():
		var v time.Duration
		v, ok = duration(n)
		if into.SetInt(int64(v)); !ok {
			d.mistake(at, path, "is %q, which is not a duration such as 500ms, 10s or 1h", n.Value)
		}
	case into.Kind() == reflect.String:
		into.SetString(n.Value)
		return
	case into.Kind() == reflect.Bool:
		var v bool
		if ok = n.ShortTag() == "!!bool" && n.Decode(&v) == nil; !ok {
			d.mistake(at, path, "is %q: true or false", n.Value)
		}
		into.SetBool(v)
		return
	case into.CanInt():
		var v int64
		if ok = n.ShortTag() == "!!int" && n.Decode(&v) == nil && !into.OverflowInt(v); !ok {
			d.mistake(at, path, "is %q, which is not a whole number", n.Value)
			return
		}
		into.SetInt(v)
	case into.CanFloat():
		var v float64
		if ok = n.Decode(&v) == nil && !math.IsInf(v, 0) && !math.IsNaN(v); !ok {
			d.mistake(at, path, "is %q, which is not a number", n.Value)
			return
		}
		into.SetFloat(v)
	default:
		panic(fmt.Sprintf("config: %s has type %s, which no key can have", path, into.Type()))
	}
	if ok && into.IsZero() {
		d.mistake(at, path, "is 0, which would mean the default: leave the key out for that, or write -1 where it can be off")
	}
}

// duration reads 10s, and -1 without a unit.
func duration(n *yaml.Node) (time.Duration, bool) {
	if n.Value == "-1" {
		return -1, true
	}
	if n.Value == "0" {
		return 0, true
	}
	v, err := time.ParseDuration(n.Value)
	return v, err == nil
}

// entry is one named member of a map whose keys the file chooses.
type entry struct {
	name string
	node *yaml.Node
}

// entries keeps the order of the file.
func (d *decoder) entries(n *yaml.Node, into reflect.Value, path, variable string) {
	var list []entry
	for k, v := range d.pairs(n, path, variable) {
		p := join(path, k.Value)
		d.where[p] = d.at(k, variable)
		if v = resolve(v); v == nil || v.Kind != yaml.MappingNode {
			d.mistake(d.at(k, variable), p, "must hold keys with values, such as {key: value}")
			continue
		}
		list = append(list, entry{k.Value, v})
	}
	into.Set(reflect.ValueOf(list))
}

// fromVariable makes a node of a variable's value: text as it is, a list from
// words between commas, anything else as YAML.
func (d *decoder) fromVariable(value, name, path string, t reflect.Type) *yaml.Node {
	word := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
	switch {
	case t.Kind() == reflect.String:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: value}
	case t.Kind() == reflect.Slice && !strings.HasPrefix(value, "["):
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for s := range strings.SplitSeq(value, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list.Content = append(list.Content, word(s))
			}
		}
		return list
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Map:
		var document yaml.Node
		if err := yaml.Unmarshal([]byte(value), &document); err != nil || len(document.Content) == 0 {
			d.mistake(name, path, "is not YAML such as [a, b] or {a: b}") // without its value, which may have secrets in it
			return nil
		}
		return document.Content[0]
	}
	if value == "" {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}
	}
	return word(value)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func orFile(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

// nearest says which of the known words was probably meant.
func nearest(word string, known []string) string {
	best, distance := "", math.MaxInt
	for _, k := range known {
		if n := edits(strings.ToLower(word), k); n < distance {
			best, distance = k, n
		}
	}
	if distance <= 1+len(word)/3 {
		return fmt.Sprintf("did you mean %q?", best)
	}
	sorted := slices.Sorted(slices.Values(known))
	return "known here: " + strings.Join(sorted, ", ")
}

// edits is the number of letters to insert, remove, replace or swap between a
// and b.
func edits(a, b string) int {
	older, old := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, old[j]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old = old, row
	}
	return old[len(b)]
}
