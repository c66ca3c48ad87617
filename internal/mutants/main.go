// The command mutants breaks rules of the protocol, of consumers and of the unit of work, each in the smallest way, and runs
// the test that has to fall. What to break, and by which test it is found, is in mutants.txt, by rule.
//
//	go run ./internal/mutants                     all; a survivor fails the command
//	go run ./internal/mutants -only relay/track   those whose file or rule matches
//	go run ./internal/mutants -sample 6 -seed 7   some, whose tests are in one package
//	go run ./internal/mutants -page               makes mutants.md of the list, and breaks nothing
//
// The sources aren't touched: mutants are woven into copies, and compiled in their place. Tests that need servers find
// them as ever, by WAYBILL_POSTGRES and WAYBILL_KAFKA.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"time"
)

//go:generate go run . -root ../.. -page

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "directory of the module")
	only := flag.String("only", "", "take mutants whose file or rule matches this regular expression")
	flag.IntVar(&o.sample, "sample", 0, "take so many at most, chosen by -seed, whose tests are in one package; 0: all")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().Unix()/86400), "of the choice; without it that of the day")
	flag.IntVar(&o.parallel, "parallel", 2, "tests at once")
	flag.DurationVar(&o.timeout, "timeout", time.Minute, "after which a mutant counts as killed, as its test doesn't end")
	flag.BoolVar(&o.page, "page", false, "make mutants.md of the list, and break nothing")
	flag.Parse()
	err := o.take(*only)
	if err == nil {
		err = do(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	root     string
	only     *regexp.Regexp // nil: all
	sample   int
	seed     uint64
	parallel int
	timeout  time.Duration
	page     bool
}

func (o *options) take(only string) (err error) {
	o.only, err = regexp.Compile(only)
	return err
}

func do(ctx context.Context, o options) error {
	text, err := os.ReadFile(o.root + "/internal/mutants/mutants.txt")
	if err != nil {
		return err
	}
	all, err := parse(string(text))
	if err != nil {
		return err
	}
	if o.page {
		return write(o.root, all)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	chosen := choose(all, o)
	woven, err := weave(o.root, dir, chosen) // only these: a package without one comes from the build cache
	if err != nil {
		return err
	}
	begin := time.Now()
	r := &runner{root: o.root, dir: dir, woven: woven, timeout: o.timeout, parallel: o.parallel}
	results, err := r.run(ctx, chosen)
	if err != nil {
		return err
	}
	survivors := report(results)
	fmt.Printf("%d of %d mutants, %d killed, %d survived, %s\n", len(chosen), len(all), len(chosen)-survivors, survivors, time.Since(begin).Round(time.Second))
	if survivors > 0 {
		return errors.New("mutants survived: the rule is broken and its test passes")
	}
	return nil
}

// choose are those that the options name. A sample is of one package, as each is a build of its own.
func choose(all []mutant, o options) []mutant {
	var chosen []mutant
	for _, m := range all {
		if o.only == nil || o.only.MatchString(m.file) || o.only.MatchString(m.rule) {
			chosen = append(chosen, m)
		}
	}
	if o.sample > 0 && o.sample < len(chosen) {
		random := rand.New(rand.NewPCG(o.seed, 0)) //nolint:gosec // Which mutants are tried is no secret.
		random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		of := chosen[0].pkg
		chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return m.pkg != of })
		chosen = chosen[:min(o.sample, len(chosen))]
	}
	return chosen
}

// report prints the survivors, and counts them.
func report(results []result) int {
	survivors := 0
	for _, r := range results {
		if r.by == "" {
			survivors++
			fmt.Printf("\nsurvivor %d, %s:%d: %s\n%s\nbecame\n%s\n", r.number, r.file, r.line, r.rule, r.before, r.after)
		}
	}
	if survivors == 0 {
		fmt.Println("\nsurvivors: none")
	}
	return survivors
}
