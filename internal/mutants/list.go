package main

import (
	"errors"
	"fmt"
	"strings"
)

// mutant is one way to break a rule.
type mutant struct {
	number        int
	section       string // of the list
	rule          string // that it breaks
	file          string
	line          int // of the snippet, once it is found
	before, after string
	pkg, test     string // that has to fall: its package, and the pattern of its name
	at            int    // line of the list
}

// parse reads the list: mutants are apart by empty lines, and each has the rule, the file, lines of what is there (-) and of
// what comes in its place (+), and the test. What holds for all up to the next one may be said once.
func parse(text string) ([]mutant, error) {
	var all []mutant
	var errs []error
	var now mutant
	end := func() {
		if now.before == "" && now.after == "" {
			return
		}
		now.number = len(all) + 1
		if now.rule == "" || now.file == "" || now.before == "" || now.test == "" || now.before == now.after {
			errs = append(errs, fmt.Errorf("mutants.txt:%d: a mutant has a rule, a file, a line that changes, and a test", now.at))
		}
		all = append(all, now)
		now.before, now.after, now.rule = "", "", ""
	}
	for i, line := range strings.Split(text, "\n") {
		sign, rest, _ := strings.Cut(line, " ")
		switch sign {
		case "":
			if rest == "" {
				end()
			}
		case "#":
		case "##":
			now.section = rest
		case "rule:":
			now.rule, now.at = rest, i+1
		case "file:":
			now.file = rest
		case "test:":
			now.pkg, now.test, _ = strings.Cut(rest, " ")
		case "-":
			now.before = join(now.before, rest)
		case "+":
			now.after = join(now.after, rest)
		default:
			errs = append(errs, fmt.Errorf("mutants.txt:%d: what is %q?", i+1, sign))
		}
	}
	end()
	return all, errors.Join(errs...)
}

func join(text, line string) string {
	if text == "" {
		return line
	}
	return text + "\n" + line
}
