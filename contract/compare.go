package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Break is a difference that breaks somebody.
type Break struct {
	Message string `json:"message"`         // "Ordering.OrderPlaced.v1", or a document's form.
	Field   string `json:"field,omitempty"` // "lines[].price"; "": the whole.
	Problem string `json:"problem"`
	// Breaks is whom: "readers" of what is written, "senders" of commands, "builds" that run
	// beside the new one, or "history", if what was written can't be read any more.
	Breaks string `json:"breaks"`
	Remedy string `json:"remedy"`
}

// String is the break in a sentence.
func (b Break) String() string {
	field := ""
	if b.Field != "" {
		field = fmt.Sprintf(" field %q", b.Field)
	}
	return fmt.Sprintf("%s:%s %s, which breaks %s: %s", b.Message, field, b.Problem, b.Breaks, b.Remedy)
}

// Compare says what breaks when before is replaced by after, in the order of the messages'
// names; nothing if nothing breaks.
func Compare(before, after *Contract) []Break {
	c := comparison{old: plain(before), new: plain(after)}
	for _, name := range slices.Sorted(maps.Keys(c.old.Messages)) {
		c.message(name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.new.Messages)) {
		c.writtenTooEarly(name)
	}
	c.states()
	c.processes()
	return c.found
}

// Equal says whether two contracts are the same.
func Equal(a, b *Contract) bool { return reflect.DeepEqual(plain(a), plain(b)) }

// plain is a contract as it is read from a file.
func plain(c *Contract) (read Contract) {
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		panic(err) // It holds nothing that JSON can't.
	}
	return read
}

type comparison struct {
	old, new Contract
	found    []Break
}

func (c *comparison) add(message, field, problem, breaks, remedy string) {
	c.found = append(c.found, Break{message, field, problem, breaks, remedy})
}

// message compares what is there with what it was.
func (c *comparison) message(name string) {
	was := c.old.Messages[name]
	is, ok := c.new.Messages[name]
	base, version, _ := split(name)
	switch {
	case !ok && c.new.Aliases[base] != "":
		if was.Shared && was.Written {
			c.add(name, "", "is called "+c.new.Aliases[base]+" now", "readers", fmt.Sprintf("let it keep its name with domain.Named(%q), which lets its Go type have another one", short(base)))
		}
		return
	case !ok && was.Kind == "command" && !was.Shared:
		c.add(name, "", "is gone", "history", "declare it again: it is named after its Go type, and waits in the outbox, in timers and in dead letters; once none of it is left there, remove it from contract.json")
		return
	case !ok && was.Kind == "command":
		c.add(name, "", "is gone", "senders", "declare it again with domain.FromOthers(); once no sender uses it any more, remove it from contract.json")
		return
	case !ok && c.knows(c.new, base):
		c.add(name, "", "can't be read any more", "history", fmt.Sprintf("add domain.Upcast(%d, …)", version))
		return
	case !ok:
		c.add(name, "", "is gone", "history", fmt.Sprintf("declare it again, or give its new name a domain.Alias(%q); once nothing stored has it and nothing reads it, remove it and its example from the contract's files", base))
		return
	case was.Shared && !is.Shared:
		whom, option := "readers", "domain.Published()"
		if was.Kind == "command" {
			whom, option = "senders", "domain.FromOthers()"
		}
		c.add(name, "", "isn't for others any more", whom, "give it "+option+" again; once nothing else uses it, remove it from contract.json")
	case was.Stream != is.Stream:
		c.add(name, "", fmt.Sprintf("comes in stream %q and came in %q", is.Stream, was.Stream), "readers", "leave the event with its aggregate, and the aggregate its name")
	}
	if was.Data != nil && is.Data != nil {
		c.data(name, is, was.Data, is.Data, "")
	}
}

func (*comparison) knows(in Contract, base string) bool {
	for name := range in.Messages {
		if b, _, _ := split(name); b == base {
			return true
		}
	}
	return false
}

// writtenTooEarly finds what builds of before would park or, under a name that is new to
// them, pass over.
func (c *comparison) writtenTooEarly(name string) {
	m := c.new.Messages[name]
	if _, read := c.old.Messages[name]; read || !m.Written || m.Kind != "event" {
		return
	}
	base, version, _ := split(name)
	switch {
	case c.knows(c.old, base):
		c.add(name, "", "is written before builds of the contract could read it", "builds",
			fmt.Sprintf("release a build with domain.WriteVersion(%d) and domain.Downcast(%d, …) first, and take the WriteVersion out with the next one", version-1, version))
	case c.old.Aliases[base] == "":
		for alias, of := range c.new.Aliases {
			if of == base && c.knows(c.old, alias) {
				c.add(name, "", "is written under a name that builds of the contract don't know", "builds",
					fmt.Sprintf("let it keep its name with domain.Named(%q), or release a build first that reads the new one by domain.Alias(%q)", short(alias), base))
			}
		}
	}
}

func (c *comparison) states() {
	written := func(base string) (versions []int) {
		for name := range c.old.States {
			if b, v, _ := split(name); b == base {
				versions = append(versions, v)
			}
		}
		return versions
	}
	for _, name := range slices.Sorted(maps.Keys(c.old.States)) {
		base, version, _ := split(name)
		if _, ok := c.new.States[name]; ok {
			continue
		}
		there := slices.ContainsFunc(slices.Collect(maps.Keys(c.new.States)), func(n string) bool { b, _, _ := split(n); return b == base })
		if there {
			c.add(name, "", "can't be read any more", "history", fmt.Sprintf("add domain.UpcastState(%d, …)", version))
		} else {
			kept := "document is stored"
			if !strings.Contains(base, "::") {
				kept = "process is kept"
			}
			c.add(name, "", "is gone", "history", "declare it again under its name; once no such "+kept+", take it out of the contract's files")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.new.States)) {
		base, version, _ := split(name)
		if _, read := c.old.States[name]; read || !c.new.States[name] || len(written(base)) == 0 {
			continue
		}
		c.add(name, "", "is written before builds of the contract could read it", "builds",
			fmt.Sprintf("release a build with domain.WriteState(%d, …) first, and take that out with the next one", version-1))
	}
}

// data compares two schemas of one message.
func (c *comparison) data(name string, m Message, was, is map[string]any, at string) {
	_, version, _ := split(name)
	another := fmt.Sprintf("make version %d of it, with a domain.Upcast", version+1)
	whom := "readers"
	if m.Kind == "command" {
		another, whom = "declare another command", "senders"
	}
	if a, b := kindOf(was), kindOf(is); a != b {
		c.add(name, at, fmt.Sprintf("is %s and was %s", b, a), whom, "let it have its type, or "+another)
		return
	}
	before, now := object(was, "properties"), object(is, "properties")
	for _, field := range slices.Sorted(maps.Keys(before)) {
		to := join(at, field)
		if _, ok := now[field]; !ok {
			c.add(name, to, "is gone", whom, "keep it, or "+another)
			continue
		}
		c.data(name, m, object(before, field), object(now, field), to)
		switch must, had := contains(is, field), contains(was, field); {
		case must && !had:
			c.add(name, to, "is required and wasn't", "history", "tag it omitzero, or "+another)
		case had && !must && m.Kind == "event":
			c.add(name, to, "may be left out and wasn't", whom, "take omitempty or omitzero out of its tag, or "+another)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(now)) {
		if _, ok := before[field]; !ok && contains(is, field) {
			breaks := "history"
			if m.Kind == "command" {
				breaks = "senders"
			}
			c.add(name, join(at, field), "is new and required", breaks, "tag it omitzero, as what was written before doesn't have it, or "+another)
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if a, b := object(was, inner), object(is, inner); a != nil && b != nil {
			c.data(name, m, a, b, at+"[]")
		}
	}
	defs := object(was, "$defs")
	for _, def := range slices.Sorted(maps.Keys(defs)) {
		if b := object(object(is, "$defs"), def); b != nil {
			c.data(name, m, object(defs, def), b, join(at, def))
		}
	}
}

// kindOf is what a schema says besides of what is within.
func kindOf(schema map[string]any) string {
	own := maps.Clone(schema)
	for _, key := range []string{"$schema", "$defs", "description", "properties", "required", "items", "additionalProperties"} {
		delete(own, key)
	}
	text, _ := json.Marshal(own) // It was JSON.
	if t, ok := own["type"].(string); ok && len(own) == 1 {
		return t
	}
	if len(own) == 0 {
		return "anything"
	}
	return string(text)
}

func object(in map[string]any, key string) map[string]any {
	of, _ := in[key].(map[string]any)
	return of
}

func contains(schema map[string]any, field string) bool {
	required, _ := schema["required"].([]any)
	return slices.Contains(required, any(field))
}

func join(at, field string) string {
	if at == "" {
		return field
	}
	return at + "." + field
}

func split(name string) (base string, version int, err error) {
	i := strings.LastIndex(name, ".v")
	if i < 0 {
		return name, 0, nil
	}
	_, err = fmt.Sscan(name[i+2:], &version)
	return name[:i], version, err
}

func short(base string) string { return base[strings.LastIndexByte(base, '.')+1:] }
