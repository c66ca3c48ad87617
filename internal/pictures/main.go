// Command pictures draws the pictures of the documentation from text: sequence diagrams, from
// docs/concepts/pictures/*.txt to docs/images/concepts/*.svg, and boxes with arrows, from docs/images/*.txt
// to the .svg beside them. Run it in the root of the repository, after a change of one:
//
//	go run ./internal/pictures
//
// A sequence diagram has a title, a description, lanes, and steps from top to bottom:
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
//
// Boxes have a column and a row, counted from 1, and arrows to the right or downwards:
//
//	title: The way of an event
//	about: A sentence or two for those who don't see it.
//	box engine 2 1: Engine | what it does, line by line
//	broker own 3 1: Broker | Kafka, NATS
//	transaction saved 1 1: one transaction | its first row | its second row
//	under saved: what is written below it
//	engine -> own
//	saved.2 -> engine
package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// kinds say where the sources of each kind of picture are, and where it is drawn.
var kinds = []struct {
	sources, drawn string
	draw           func(text string) (string, error)
}{
	{"docs/concepts/pictures", "docs/images/concepts", func(text string) (string, error) {
		p, err := parse(text)
		if err != nil {
			return "", err
		}
		return p.svg(), nil
	}},
	{"docs/images", "docs/images", func(text string) (string, error) {
		b, err := parseBoxes(text)
		if err != nil {
			return "", err
		}
		return b.svg(), nil
	}},
}

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
	for path, svg := range all {
		if err := os.WriteFile(filepath.Join(root, path), []byte(svg), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pictures are all that there are, by the path that they are drawn to.
func pictures(root string) (map[string]string, error) {
	all := map[string]string{}
	for _, kind := range kinds {
		files, err := filepath.Glob(filepath.Join(root, kind.sources, "*.txt"))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("there is none in %s: run it in the root of the repository", kind.sources)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			svg, err := kind.draw(string(text))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			all[path.Join(kind.drawn, strings.TrimSuffix(filepath.Base(file), ".txt")+".svg")] = svg
		}
	}
	return all, nil
}
