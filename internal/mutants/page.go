package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const intro = `# Mutants

<!-- Made from mutants.txt by go generate ./internal/mutants; changes belong there. -->

Each rule below is broken in the smallest way by ` + "`go run ./internal/mutants`" + `, and the test beside it has to fall. ` + "`scripts/test --long`" + ` breaks
all of them, ` + "`scripts/test`" + ` some, others every day; a survivor fails either. What is changed is in [mutants.txt](mutants.txt).

%d rules in %d files.
`

// page is what stands in mutants.md.
func page(all []mutant) string {
	files := map[string]bool{}
	for _, m := range all {
		files[m.file] = true
	}
	var b strings.Builder
	fmt.Fprintf(&b, intro, len(all), len(files))
	section := ""
	for _, m := range all {
		if m.section != section {
			section = m.section
			fmt.Fprintf(&b, "\n## %s\n\n| Rule | Broken in | Killed by |\n|---|---|---|\n", section)
		}
		fmt.Fprintf(&b, "| %s | `%s` | `%s` of `%s` |\n", strings.ReplaceAll(m.rule, "|", `\|`), m.file, strings.Trim(m.test, "^$"), strings.TrimPrefix(m.pkg, "./"))
	}
	return b.String()
}

// write makes the page.
func write(root string, all []mutant) error {
	return os.WriteFile(filepath.Join(root, "internal/mutants/mutants.md"), []byte(page(all)), 0o600)
}
