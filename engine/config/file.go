package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// File is what a file and the environment say, checked, with nothing opened.
// Fields are zero where they say nothing, so that a program can set defaults of
// its own before it opens:
//
//	f.Outbox.Calls = cmp.Or(f.Outbox.Calls, 4)
type File struct {
	Domain          string
	History         bool            // The domain's, see uow.Config.
	Broker          string          // The domain's own; "default" if the file names none.
	External        []outbox.Target // The domain's.
	Partitions      int
	MaxMessageBytes int
	Outbox          outbox.Config
	DeadLetters     subscription.DeadLetterRetention
	Server          engine.Server

	name      string // of the file, for errors
	providers []provider
	brokers   []brokerEntry
	vars      *variables
}

type provider struct {
	name, dialect string
	settings      settings
}

type brokerEntry struct {
	name, kind, prefix string
	settings           settings
	shares             string // the broker before it that has the same settings
}

// document is the file's form.
type document struct {
	Domain    string  `yaml:"domain"`
	History   bool    `yaml:"history"`
	Providers []entry `yaml:"providers"`
	Brokers   []entry `yaml:"brokers"`
	Outbox    struct {
		Broker          string        `yaml:"broker"`
		ExternalBrokers []external    `yaml:"external_brokers"`
		Calls           int           `yaml:"calls"`
		Partitions      int           `yaml:"partitions"`
		OnAbandoned     string        `yaml:"on_abandoned"`
		OnFailover      string        `yaml:"on_failover"`
		MaxMessageBytes int           `yaml:"max_message_bytes"`
		BatchSize       int           `yaml:"batch_size"`
		PollInterval    time.Duration `yaml:"poll_interval"`
		MaxPollInterval time.Duration `yaml:"max_poll_interval"`
		Lease           time.Duration `yaml:"lease"`
		PublishTimeout  time.Duration `yaml:"publish_timeout"`
		Retry           struct {
			MaxAttempts int           `yaml:"max_attempts"`
			BaseDelay   time.Duration `yaml:"base_delay"`
			Multiplier  float64       `yaml:"multiplier"`
			MaxBackoff  time.Duration `yaml:"max_backoff"`
			Jitter      float64       `yaml:"jitter"`
		} `yaml:"retry"`
		Retention struct {
			Mode      string        `yaml:"mode"`
			Published time.Duration `yaml:"published"`
			Abandoned time.Duration `yaml:"abandoned"`
			Every     time.Duration `yaml:"every"`
		} `yaml:"retention"`
	} `yaml:"outbox"`
	Subscriptions struct {
		DeadLetters struct {
			Resolved time.Duration `yaml:"resolved"`
			Every    time.Duration `yaml:"every"`
			Batch    int           `yaml:"batch"`
		} `yaml:"dead_letters"`
	} `yaml:"subscriptions"`
	Server struct {
		Addr         string   `yaml:"addr"`
		Token        string   `yaml:"token"`
		Tokens       []token  `yaml:"tokens"`
		ShowPayloads bool     `yaml:"show_payloads"`
		Redact       []string `yaml:"redact"`
	} `yaml:"server"`
}

// token is one of those that the server takes.
type token struct {
	Name  string `yaml:"name"`
	Role  string `yaml:"role"`
	Token string `yaml:"token"`
	File  string `yaml:"file"`
}

// external is a partner's broker: a name, or a mapping.
type external struct {
	Broker     string            `yaml:"broker"`
	Envelope   string            `yaml:"envelope"`
	Events     []string          `yaml:"events"`
	Extensions []string          `yaml:"extensions"`
	Topics     map[string]string `yaml:"topics"`
	Versions   map[string]int    `yaml:"versions"`
}

func (e *external) fromWord(word string) { e.Broker = word }

// Parse reads a file and applies the environment. It opens nothing, and returns
// all mistakes together, each with its line or variable.
func Parse(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w; correct the path of the configuration file, or write one", err)
	}
	name := filepath.Base(path)
	var root yaml.Node
	reader := yaml.NewDecoder(bytes.NewReader(text))
	if err := reader.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("config: %s: %s%s", name, strings.TrimPrefix(err.Error(), "yaml: "), tabbed(text))
	}
	if reader.Decode(new(yaml.Node)) == nil {
		return nil, fmt.Errorf("config: %s: holds several documents; keep one", name)
	}
	if left := maxNodes; !bounded(&root, &left) {
		return nil, fmt.Errorf("config: %s: its aliases make more than %d values of it, or refer to themselves: write them out", name, maxNodes)
	}
	d := &decoder{file: name, vars: &variables{asked: map[string]bool{}}, where: map[string]string{}}
	var doc document
	if len(root.Content) > 0 {
		d.structure(root.Content[0], value(&doc), "", "")
	}
	f := d.convert(doc)
	if len(d.errs) > 0 {
		return nil, fmt.Errorf("config: %w", errors.Join(d.errs...))
	}
	return f, nil
}

// tabbed says of a text that is no YAML which line has a tab before its first word: nobody sees it, and
// the YAML library names no character.
func tabbed(text []byte) string {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]; bytes.Contains(indent, []byte("\t")) {
			return fmt.Sprintf("; line %d is indented with a tab: use spaces", n)
		}
	}
	return ""
}

// maxNodes is how many values a file may have when its aliases are followed.
const maxNodes = 10_000

// bounded says whether a value has no more than left values in it.
func bounded(n *yaml.Node, left *int) bool {
	if *left--; *left < 0 {
		return false
	}
	if n.Alias != nil && !bounded(n.Alias, left) {
		return false
	}
	for _, inner := range n.Content {
		if !bounded(inner, left) {
			return false
		}
	}
	return true
}

// convert turns the file's form into that of the packages, and checks what only
// the file can know.
func (d *decoder) convert(doc document) *File {
	o := doc.Outbox
	f := &File{
		name:            d.file,
		vars:            d.vars,
		Domain:          doc.Domain,
		History:         doc.History,
		Broker:          cmp.Or(o.Broker, "default"),
		Partitions:      o.Partitions,
		MaxMessageBytes: o.MaxMessageBytes,
		Outbox: outbox.Config{
			Calls: o.Calls, BatchSize: o.BatchSize,
			PollInterval: o.PollInterval, MaxPollInterval: o.MaxPollInterval,
			Lease: o.Lease, PublishTimeout: o.PublishTimeout,
			OnAbandoned: outbox.OnAbandoned(o.OnAbandoned), OnFailover: outbox.OnFailover(o.OnFailover),
			Retry: outbox.RetryPolicy{
				MaxAttempts: o.Retry.MaxAttempts, BaseDelay: o.Retry.BaseDelay,
				Multiplier: o.Retry.Multiplier, MaxBackoff: o.Retry.MaxBackoff, Jitter: o.Retry.Jitter,
			},
			Retention: outbox.Retention{
				Delete:    o.Retention.Mode == "delete",
				Published: o.Retention.Published, Abandoned: o.Retention.Abandoned,
				Every: o.Retention.Every,
			},
		},
		DeadLetters: subscription.DeadLetterRetention(doc.Subscriptions.DeadLetters),
		Server: engine.Server{
			Addr: doc.Server.Addr, Token: doc.Server.Token, ShowPayloads: doc.Server.ShowPayloads, Redact: doc.Server.Redact,
		},
	}
	for _, t := range doc.Server.Tokens {
		f.Server.Tokens = append(f.Server.Tokens, engine.Token{Name: t.Name, Role: engine.Role(t.Role), Token: t.Token, File: t.File})
	}
	d.providers(f, doc.Providers)
	d.brokers(f, doc.Brokers)
	d.external(f, o.ExternalBrokers)

	if m := o.Retention.Mode; m != "" && m != "keep" && m != "delete" {
		d.mistake(d.where["outbox.retention.mode"], "outbox.retention.mode", `is %q: "keep" or "delete"`, m)
	}
	if o.Partitions < 0 {
		d.mistake(d.where["outbox.partitions"], "outbox.partitions", "is %d: at least 1", o.Partitions)
	}
	if o.MaxMessageBytes < -1 {
		d.mistake(d.where["outbox.max_message_bytes"], "outbox.max_message_bytes", "is %d: above 0, or -1 for no limit", o.MaxMessageBytes)
	}
	d.check(f.Outbox.Check())
	d.check(f.DeadLetters.Check())
	d.check(f.Server.Check())
	return f
}

// check adds a package's own errors, which begin with the key, with its place.
func (d *decoder) check(err error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, err := range joined.Unwrap() {
		path, _, _ := strings.Cut(strings.TrimSuffix(err.Error(), ":"), " ")
		d.errs = append(d.errs, fmt.Errorf("%s: %w", cmp.Or(d.where[path], d.file), err))
	}
}

func (d *decoder) providers(f *File, entries []entry) {
	for _, e := range entries {
		path := "providers." + e.name
		var head struct {
			Dialect string `yaml:"dialect"`
		}
		s := d.head(e, path, &head)
		if head.Dialect == "" {
			d.mistake(cmp.Or(d.where[path+".dialect"], d.where[path]), path, "has no dialect: write `dialect: postgres` or `dialect: sqlite`")
		}
		f.providers = append(f.providers, provider{e.name, head.Dialect, s})
	}
	if len(entries) == 0 {
		d.mistake(d.file, "providers", "is missing: name a database, as in `default: {dialect: sqlite, path: ./ordering.db}`")
	}
	// The first is the default, wherever the file has it.
	if i := slices.IndexFunc(f.providers, func(p provider) bool { return p.name == "default" }); i > 0 {
		p := f.providers[i]
		f.providers = slices.Insert(slices.Delete(f.providers, i, i+1), 0, p)
	}
	flats := flatten(f.providers, func(p provider) settings { return p.settings })
	for i, p := range f.providers {
		for j, q := range f.providers[:i] {
			if p.dialect == q.dialect && maps.Equal(flats[i], flats[j]) {
				d.mistake(d.where["providers."+p.name], "providers."+p.name, "is the same database as providers.%s: remove one of them", q.name)
			}
		}
	}
}

func (d *decoder) brokers(f *File, entries []entry) {
	for _, e := range entries {
		path := "brokers." + e.name
		var head struct {
			Kind        string `yaml:"kind"`
			TopicPrefix string `yaml:"topic_prefix"`
		}
		s := d.head(e, path, &head)
		if head.Kind == "" {
			d.mistake(cmp.Or(d.where[path+".kind"], d.where[path]), path, "has no kind: write `kind: kafka` or `kind: nats`")
		}
		b := brokerEntry{name: e.name, kind: head.Kind, prefix: head.TopicPrefix, settings: s}
		d.prefix(b, f.Domain)
		f.brokers = append(f.brokers, b)
	}
	flats := flatten(f.brokers, func(b brokerEntry) settings { return b.settings })
	for i := range f.brokers {
		b := &f.brokers[i]
		for j, other := range f.brokers[:i] {
			if b.kind != other.kind || !samePlace(flats[i], flats[j]) {
				continue
			}
			if b.prefix == other.prefix {
				d.mistake(d.where["brokers."+b.name], "brokers."+b.name, "is at the same place as brokers.%s, so both would use the same topics: give one of them another topic_prefix", other.name)
			}
			if b.shares == "" && maps.Equal(flats[i], flats[j]) {
				b.shares = cmp.Or(other.shares, other.name)
			}
		}
	}
}

// head reads the keys that every entry of a kind has; the rest are its adapter's.
func (d *decoder) head(e entry, path string, into any) settings {
	var generic, others []string
	for _, k := range keysOf(value(into).Type()) {
		generic = append(generic, k.name)
	}
	for i := 0; i < len(e.node.Content); i += 2 {
		others = append(others, e.node.Content[i].Value)
	}
	d.structure(e.node, value(into), path, "", others...)
	return settings{file: d.file, path: path, node: e.node, generic: generic, vars: d.vars}
}

func (d *decoder) external(f *File, list []external) {
	var names []string
	for _, b := range f.brokers {
		names = append(names, b.name)
	}
	known := func(path, at, name string) {
		if len(names) > 0 && !slices.Contains(names, name) {
			d.mistake(at, path, "names broker %q, which is not in brokers; %s", name, nearest(name, names))
		}
	}
	if at, ok := d.where["outbox.broker"]; ok {
		known("outbox.broker", at, f.Broker)
	}
	seen := map[string]bool{f.Broker: true}
	for i, e := range list {
		path := fmt.Sprintf("outbox.external_brokers[%d]", i)
		at := d.where[path]
		switch {
		case e.Broker == "":
			d.mistake(at, path, "names no broker: write its name, or {broker: name}")
			continue
		case e.Broker == f.Broker:
			d.mistake(at, path, "is %q, the domain's own broker: remove it", e.Broker)
		case seen[e.Broker]:
			d.mistake(at, path, "is %q, which stands there already: remove one", e.Broker)
		default:
			known(path, at, e.Broker)
		}
		seen[e.Broker] = true
		envelope := outbox.Envelope(e.Envelope)
		if envelope != "" && !slices.Contains(outbox.Envelopes(), envelope) {
			d.mistake(d.where[path+".envelope"], path+".envelope", "is %q: use one of %q, or leave it out for %q", envelope, outbox.Envelopes(), outbox.Stripped)
		}
		f.External = append(f.External, outbox.Target{Broker: e.Broker, Envelope: envelope, Events: e.Events, Extensions: e.Extensions, Topics: e.Topics, Versions: e.Versions})
	}
}
