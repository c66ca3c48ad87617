// The command conformance makes docs/conformance.md from docs/conformance.tsv, and with -long lists the tests that only
// scripts/test --long runs. Its tests hold that the list is whole, and that what it names exists, runs and says so.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run . -root ../..

func main() {
	root := flag.String("root", ".", "directory of the module")
	long := flag.Bool("long", false, "list the tests that only scripts/test --long runs, instead of making the page")
	flag.Parse()
	do := write
	if *long {
		do = listLong
	}
	if err := do(*root); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// write makes the page.
func write(root string) error {
	sections, err := read(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "docs/conformance.md"), []byte(page(sections)), 0o600)
}

// listLong says which tests the ordinary run leaves out.
func listLong(root string) error {
	tests, err := testsOf(root)
	if err != nil {
		return err
	}
	for _, name := range tests.onlyLong() {
		fmt.Println(name)
	}
	return nil
}
