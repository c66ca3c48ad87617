package config

import (
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// variables are the environment's, and remember which of them keys were looked up in. Safe
// for concurrent use, as adapters are opened together.
type variables struct {
	mu    sync.Mutex
	asked map[string]bool
}

// override looks for the variable that stands for a path:
// WAYBILL_OUTBOX_RETRY_BASE_DELAY for outbox.retry.base_delay.
func (v *variables) override(path string) (value, name string, ok bool) {
	name = variable(path)
	v.mu.Lock()
	v.asked[name] = true
	v.mu.Unlock()
	value, ok = os.LookupEnv(name)
	return value, name, ok
}

// emptied adds to what is wrong at a path the variables that are there without a value and so take
// away what the file says: a reader of it would look for the mistake there.
func (v *variables) emptied(path string, err error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var empty []string
	for name := range v.asked {
		if value, ok := os.LookupEnv(name); ok && value == "" && strings.HasPrefix(name+"_", variable(path)+"_") {
			empty = append(empty, name)
		}
	}
	if len(empty) == 0 {
		return err
	}
	slices.Sort(empty)
	return fmt.Errorf("%w; set without a value, which overrides the file: %s", err, strings.Join(empty, ", "))
}

func variable(path string) string {
	return "WAYBILL_" + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(path))
}

// warnOfVariables logs which variables set nothing, though they are in a section of the file
// or almost named as a key. They are no mistake: several services may share an environment.
func (f *File) warnOfVariables(logger *slog.Logger) {
	if logger == nil {
		logger = slog.Default()
	}
	f.vars.mu.Lock()
	defer f.vars.mu.Unlock()
	known := f.vars.asked
	for _, b := range f.brokers { // one that shares another's connection wasn't opened
		if b.shares == "" {
			continue
		}
		first, own := variable("brokers."+b.shares)+"_", variable("brokers."+b.name)+"_"
		for name := range known {
			if key, ok := strings.CutPrefix(name, first); ok {
				known[own+key] = true
			}
		}
	}
	var sections []string
	for _, k := range keysOf(reflect.TypeFor[document]()) {
		if k.typ.Kind() == reflect.Struct || k.typ == reflect.TypeFor[[]entry]() {
			sections = append(sections, variable(k.name)+"_")
		}
	}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if known[name] || !strings.HasPrefix(name, variable("")) {
			continue
		}
		closest, distance := "", len(name)
		for k := range known {
			if n := edits(name, k); n < distance || n == distance && k < closest {
				closest, distance = k, n
			}
		}
		if distance > 2 && !slices.ContainsFunc(sections, func(s string) bool { return strings.HasPrefix(name, s) }) {
			continue // another program's
		}
		logger.Warn("an environment variable sets nothing, as no key of the configuration has its name: correct or remove it", "variable", name, "closest", closest)
	}
}
