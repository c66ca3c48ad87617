package domain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/jsonfields"
	"github.com/waybill-go/waybill/internal/rootstate"
)

// CommandType describes a declared command. It must not be changed.
type CommandType struct {
	Name    string // "Library.ConfirmLoan"
	Version int
	Context string // Whose handler it is for: "library".
	// Foreign is a command of another context, and FromOthers one of this context that
	// other contexts may send.
	Foreign, FromOthers bool

	// Keyed says whether its messages have a key, see [KeyedBy].
	Keyed bool

	goType  reflect.Type
	key     func(command any) string
	message *EventType // as which its messages are read
}

// WireName is the name in a message: "Library.ConfirmLoan.v1".
func (t *CommandType) WireName() string { return t.Name + ".v" + strconv.Itoa(t.Version) }

// GoType is the command's.
func (t *CommandType) GoType() reflect.Type { return t.goType }

// ShortName is the name within its context: "ConfirmLoan".
func (t *CommandType) ShortName() string { return t.Name[strings.LastIndexByte(t.Name, '.')+1:] }

// Category is the stream that the command travels in: "library::commands". No
// aggregate of a context with commands can have that name.
func (t *CommandType) Category() string { return CommandCategory(t.Context) }

// CommandCategory is the stream of all commands for a context: "library::commands".
func CommandCategory(context string) string { return context + "::" + commands }

const commands = "commands"

// Key is what a command's messages are ordered by, and the identity of the
// aggregate that it is for: what [KeyedBy] says. "" is no key.
func (t *CommandType) Key(command any) string { return t.key(command) }

// CommandOption adjusts a command's declaration.
type CommandOption interface {
	applyToCommand(*builder, *CommandType)
}

type commandOption func(*builder, *CommandType)

func (f commandOption) applyToCommand(b *builder, t *CommandType) { f(b, t) }

// Command declares a command that this context handles: it has one handler, whoever
// sends it. It is version 1, and named after its Go type, unless [Named] says otherwise.
func Command[C any](options ...CommandOption) Element {
	return elementFunc(func(b *builder) {
		g := reflect.TypeFor[C]()
		b.addCommand(&CommandType{Name: camel(b.name) + "." + g.Name(), Version: 1, Context: b.name, goType: g}, options)
	})
}

// ForeignCommand declares a command of another context that this one sends. That
// context must have declared it with [FromOthers]. C is this context's own type, and
// wireName the name that the other context reads:
//
//	domain.ForeignCommand[ChargeFee]("billing", "Billing.ChargeFee.v1", domain.KeyedBy("loan_id"))
func ForeignCommand[C any](context, wireName string, options ...CommandOption) Element {
	return elementFunc(func(b *builder) {
		g := reflect.TypeFor[C]()
		base, version, err := splitWireName(wireName)
		switch {
		case err != nil:
			b.errorf("foreign command %s: %w", g, err)
		case !lowerName.MatchString(context):
			b.errorf("foreign command %s: %q can't be a context's name: write the one that handles it, as in %q", g, context, "billing")
		case context == b.name:
			b.errorf("foreign command %s is this context's own: declare domain.Command[%s](…)", g, g)
		default:
			b.addCommand(&CommandType{Name: base, Version: version, Context: context, Foreign: true, goType: g}, options)
		}
	})
}

// KeyedBy names the JSON field, a string, that says which aggregate a command is for:
// command.Update loads the one of that identity. Messages of one key are handled one
// after the other, in the order in which their units of work committed. A message whose
// field is empty is in no order with others, as are all with KeyedBy("").
func KeyedBy(field string) CommandOption {
	return commandOption(func(b *builder, t *CommandType) {
		if field == "" {
			t.key = func(any) string { return "" }
			return
		}
		get, err := stringField(t.goType, field)
		if err != nil {
			b.errorf("command %s: domain.KeyedBy(%q): %w", t.Name, field, err)
			get = func(any) string { return "" }
		}
		t.key, t.Keyed = get, true
	})
}

// FromOthers lets other contexts send a command. One that comes from another context
// without it is parked.
func FromOthers() CommandOption {
	return commandOption(func(b *builder, t *CommandType) {
		if t.Foreign {
			b.errorf("foreign command %s can't be FromOthers: the context that handles it says so", t.Name)
		}
		t.FromOthers = true
	})
}

func (b *builder) addCommand(t *CommandType, options []CommandOption) {
	if t.goType.Kind() != reflect.Struct {
		b.errorf("command %s is not a struct: declare it by value, and give it fields with names", t.goType)
		return
	}
	for i, o := range options {
		if o == nil {
			b.errorf("command %s: option %d is nil: take it out", t.Name, i+1)
			continue
		}
		o.applyToCommand(b, t)
	}
	if t.key == nil {
		b.errorf("command %s has no key: add domain.KeyedBy(%q), with the JSON field that says which aggregate it is for, or domain.KeyedBy(\"\") if its messages need no order", t.Name, "loan_id")
	}
	if !t.Foreign {
		if short := t.Name[len(camel(b.name))+1:]; !eventName.MatchString(short) {
			b.errorf("command %s: %q can't be its name: give it one of ASCII letters, digits and '_' with domain.Named(…)", t.goType, short)
		}
	}
	lost := jsonfields.Lost(t.goType, reflect.TypeFor[Root](), "")
	for _, problem := range lost {
		b.errorf("command %s: %s", t.Name, problem)
	}
	if encoded := notAnObject(t.goType); encoded != "" && len(lost) == 0 {
		b.errorf("command %s: %s encodes as %s, and a command has to be a JSON object: look for a MarshalJSON, perhaps of an embedded field", t.Name, t.goType, encoded)
	}
	if _, dup := b.commands[t.goType]; dup {
		b.errorf("command %s: %s is declared twice: take one out", t.Name, t.goType)
		return
	}
	if other, dup := b.names[t.Name]; dup {
		b.errorf("the name %s is used by %s and by command %s: rename one of them with domain.Named", t.Name, other.goType, t.goType)
		return
	}
	t.message = &EventType{Name: t.Name, Forms: newForms(t.goType), Category: t.Category(), Foreign: t.Foreign, command: t}
	t.message.Version, t.message.Written = t.Version, t.Version
	b.commands[t.goType] = t
	b.names[t.Name] = t.message
}

// checkCommands finds what only the whole declaration shows.
func (b *builder) checkCommands() {
	for _, t := range b.Commands() {
		if e, ok := b.events[t.goType]; ok {
			b.errorf("%s is declared as command %s and as event %s: give each a type of its own", t.goType, t.Name, e.Name)
		}
	}
	if !b.HandlesCommands() {
		return
	}
	for _, a := range b.aggregates {
		if a.Name == commands {
			b.errorf("aggregate %q: %s is the stream of the context's commands: give the aggregate another name", a.Name, a.Category)
		}
	}
}

// CommandTypeOf describes a command, or reports an [*UndeclaredError].
func (d *Domain) CommandTypeOf(command any) (*CommandType, error) {
	return d.commandType(reflect.TypeOf(command))
}

// CommandTypeFor is CommandTypeOf for a type parameter.
func CommandTypeFor[C any](d *Domain) (*CommandType, error) {
	return d.commandType(reflect.TypeFor[C]())
}

func (d *Domain) commandType(g reflect.Type) (*CommandType, error) {
	t, ok := d.commands[g]
	if !ok {
		return nil, d.undeclared(g, "domain.Command[TYPE](domain.KeyedBy(…)), or domain.ForeignCommand if another context handles it")
	}
	return t, nil
}

// Commands are the declared commands, the foreign ones included, by name.
func (d *Domain) Commands() []*CommandType {
	return slices.SortedFunc(maps.Values(d.commands), func(a, b *CommandType) int { return strings.Compare(a.Name, b.Name) })
}

// HandlesCommands says whether the context has commands of its own.
func (d *Domain) HandlesCommands() bool {
	return slices.ContainsFunc(d.Commands(), func(t *CommandType) bool { return !t.Foreign })
}

// EncodeCommand returns a command's type and the bytes of its data.
func (d *Domain) EncodeCommand(command any) (*CommandType, json.RawMessage, error) {
	t, err := d.CommandTypeOf(command)
	if err != nil {
		return nil, nil, err
	}
	data, err := jsonfields.Marshal(command)
	if err == nil && !bytes.HasPrefix(data, []byte("{")) {
		err = fmt.Errorf("it encodes as %.20s…, and a command has to be a JSON object", data)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("domain %s: command %s can't be encoded: %w", d.name, t.goType, err)
	}
	return t, data, nil
}

// SetTimer has a command of this context handled at a time, if the unit of work that
// saves the aggregate commits. An aggregate has one timer of a name: to set it again
// moves it.
//
// At that time, by the database's clock, the command goes through the outbox like any
// other; nothing waits behind it until then. Once a commit has stopped or moved a
// timer, the old one has no effect any more, even if its command is on its way.
func SetTimer(a AggregateRoot, name string, at time.Time, command any) {
	s := &a.root().state
	s.Timers = append(s.Timers, rootstate.Timer{ID: newID(), Name: name, At: at, Command: command})
}

// StopTimer stops a timer. One that isn't set, or was handled, is no error. To remove
// an aggregate stops all of its timers.
func StopTimer(a AggregateRoot, name string) {
	s := &a.root().state
	s.Timers = append(s.Timers, rootstate.Timer{Name: name, Stop: true})
}

// stringField finds the field that JSON calls name, for messages that must have it.
func stringField(t reflect.Type, name string) (func(any) string, error) {
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && !f.Anonymous && (tag == name || tag == "" && f.Name == name) && f.Type.Kind() == reflect.String {
			return func(m any) string { return reflect.ValueOf(m).FieldByIndex(f.Index).String() }, nil
		}
	}
	return nil, fmt.Errorf("%v has no string field with the JSON name %q", t, name)
}
