// Command pictures draws the sequence diagrams of the documentation: docs/concepts/pictures/*.txt
// becomes docs/images/concepts/*.svg. Run it in the root of the repository, after a change of one:
//
//	go run ./internal/pictures
//
// A picture has a title, a description, lanes, and steps from top to bottom:
//
//	title: What is committed is published
//	about: A sentence or two for those who don't see it.
//	lane db: Database
//	lane engine: Engine
//	engine -> db: a call or a message
//	db --> engine: an answer
//	engine -x db: one that is lost
//	note db: what is so there; over several lanes with "note db engine"
//	crash engine: what breaks
//	begin: what belongs together, until end
//	end
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	sources = "docs/concepts/pictures"
	drawn   = "docs/images/concepts"
)

func main() {
	if err := drawAll("."); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func drawAll(root string) error {
	all, err := pictures(root)
	if err != nil {
		return err
	}
	for name, svg := range all {
		if err := os.WriteFile(filepath.Join(root, drawn, name+".svg"), []byte(svg), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pictures are all that there are, by name.
func pictures(root string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(root, sources, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("there is none in %s: run it in the root of the repository", sources)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		p, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".txt")] = p.svg()
	}
	return all, nil
}
