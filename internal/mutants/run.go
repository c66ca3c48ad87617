package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// result is what became of a mutant.
type result struct {
	mutant

	by   string // the test that fell; empty: none did
	took time.Duration
}

func (r result) String() string {
	by := "killed by " + r.by
	if r.by == "" {
		by = "SURVIVED " + r.test
	}
	return fmt.Sprintf("%3d  %-34s %-70.70s  %-60s %5.1fs", r.number, r.file+":"+strconv.Itoa(r.line), r.rule, by, r.took.Seconds())
}

// passed is what became of a test that no mutant disturbs.
type passed struct {
	err  error
	took time.Duration
}

// runner builds the tests of each package once, and runs them with one mutant at a time.
type runner struct {
	root, dir string
	woven     woven
	timeout   time.Duration
	parallel  int

	mu    sync.Mutex
	sound map[string]passed // tests without a mutant
}

func (r *runner) run(ctx context.Context, mutants []mutant) ([]result, error) {
	r.sound = map[string]passed{}
	binaries := map[string]string{}
	for _, m := range mutants {
		if _, apart := r.woven.apart[m.number]; apart || binaries[m.pkg] != "" {
			continue
		}
		binary := filepath.Join(r.dir, strconv.Itoa(len(binaries))+".test")
		if err := r.build(ctx, m.pkg, binary, r.woven.overlay); err != nil {
			return nil, err
		}
		binaries[m.pkg] = binary
	}
	results := make([]result, len(mutants))
	errs := make([]error, len(mutants))
	turns := make(chan struct{}, max(1, r.parallel))
	var all sync.WaitGroup
	for i, m := range mutants {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if results[i], errs[i] = r.one(ctx, m, binaries[m.pkg]); errs[i] == nil {
				fmt.Println(results[i])
			}
		})
	}
	all.Wait()
	return results, errors.Join(errs...)
}

func (r *runner) build(ctx context.Context, pkg, binary, overlay string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, pkg) //nolint:gosec // It builds what the list names.
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s doesn't compile with its mutants: %w\n%s", pkg, err, out)
	}
	return nil
}

// one runs the test of a mutant: without it, when it has to pass, and with it.
func (r *runner) one(ctx context.Context, m mutant, binary string) (result, error) {
	res := result{mutant: m}
	patience := r.timeout
	if text, ok := r.woven.apart[m.number]; ok {
		own := filepath.Join(r.dir, fmt.Sprintf("apart%d", m.number))
		source, err := filepath.Abs(filepath.Join(r.root, m.file))
		if err != nil {
			return res, err
		}
		changed := own + filepath.Ext(m.file)
		err = errors.Join(os.WriteFile(changed, []byte(text), 0o600), r.woven.write(own+".json", map[string]string{source: changed}))
		if err != nil {
			return res, err
		}
		binary = own + ".test"
		if err := r.build(ctx, m.pkg, binary, own+".json"); err != nil {
			return res, err
		}
		defer func() { _ = os.Remove(binary) }()
	} else if sound := r.passes(ctx, m, binary); sound.err != nil {
		return res, sound.err
	} else { // what takes so much longer hangs
		patience = min(patience, 10*time.Second+3*sound.took)
	}
	begin := time.Now()
	out, err := r.test(ctx, m, binary, strconv.Itoa(m.number), patience)
	res.took = time.Since(begin)
	if err != nil {
		res.by = fallen(out)
	}
	return res, nil
}

// passes says what is wrong with a test that no mutant disturbs.
func (r *runner) passes(ctx context.Context, m mutant, binary string) passed {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := m.pkg + " " + m.test
	if known, ok := r.sound[key]; ok {
		return known
	}
	begin := time.Now()
	out, err := r.test(ctx, m, binary, "", r.timeout)
	switch {
	case err != nil:
		err = fmt.Errorf("%s %s fails without a mutant: %w\n%s", m.pkg, m.test, err, out)
	case strings.Contains(out, "no tests to run"):
		err = fmt.Errorf("mutants.txt:%d: there is no test %s in %s", m.at, m.test, m.pkg)
	}
	r.sound[key] = passed{err, time.Since(begin)}
	return r.sound[key]
}

func (r *runner) test(ctx context.Context, m mutant, binary, alive string, patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", m.test, "-test.failfast") //nolint:gosec // It was built just now.
	cmd.Dir = filepath.Join(r.root, m.pkg)
	cmd.Env = append(os.Environ(), variable+"="+alive)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", errors.Join(ctx.Err(), err)
	}
	return string(out), err
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// fallen is the innermost test that failed.
func fallen(out string) string {
	all := failed.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		if out == "" {
			return "a test that doesn't end"
		}
		return "a panic"
	}
	by := all[0][1]
	for _, f := range all {
		if strings.HasPrefix(f[1], by+"/") {
			by = f[1]
		}
	}
	return by
}
