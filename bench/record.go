package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/figures"
)

const (
	// recordArg is the command that measures and writes what came of it into figures.Results and the documents.
	recordArg = "record"
	// figuresArg only writes the documents.
	figuresArg = "figures"

	root = ".." // bench is run in its folder
)

// record measures scenarios and keeps each as soon as it is done, so that a run that is ended has kept what it finished.
func record(ctx context.Context, args []string, out, log io.Writer) (err error) {
	flags := flag.NewFlagSet("bench "+recordArg, flag.ContinueOnError)
	flags.SetOutput(log)
	only := flags.String("scenario", "", "one or several with commas between; default all but retention")
	runs := flags.Int("runs", 3, "how often each is run")
	anew := flags.Bool("anew", false, "forget what was recorded before, on another machine for example")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *runs < 1 {
		return fmt.Errorf("no arguments, please, and --runs of at least 1: %q", args)
	}
	chosen, err := choose(scenarios(usual), *only)
	if err != nil {
		return err
	}
	file, err := figures.Read(root)
	if err != nil {
		return err
	}
	w, err := open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	machine, err := w.machine(ctx)
	if err != nil {
		return err
	}
	if err := file.Begin(machine, *anew); err != nil {
		return err
	}
	commit, err := commit(ctx)
	if err != nil {
		return err
	}
	for _, s := range chosen {
		r, err := s.run(ctx, w, *runs, profiles{})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := r.text(out); err != nil {
			return err
		}
		file.Records[s.name] = figures.Record{Date: time.Now().UTC().Format(time.DateOnly), Commit: commit, Runs: *runs, Scenario: r.figures()}
		if err := file.Write(root); err != nil {
			return err
		}
	}
	return updateFigures(out)
}

// updateFigures writes into the documents what is recorded.
func updateFigures(out io.Writer) error {
	file, err := figures.Read(root)
	if err != nil {
		return err
	}
	documents, err := figures.Documents(root)
	if err != nil {
		return err
	}
	changed, err := file.Update(root, documents)
	for _, d := range changed {
		fmt.Fprintln(out, "updated", d)
	}
	return err
}

// machine is what this is measured on.
func (w *world) machine(ctx context.Context) (figures.Machine, error) {
	m := figures.Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Processor: "unknown"}
	if err := w.sql.QueryRow(ctx, `SELECT split_part(current_setting('server_version'), ' ', 1)`).Scan(&m.Postgres); err != nil {
		return m, err
	}
	value := func(path, key string) string {
		f, err := os.Open(path)
		if err != nil {
			return "" // not Linux
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == key {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	if name := value("/proc/cpuinfo", "model name"); name != "" {
		m.Processor = name
	}
	var kib int
	if _, err := fmt.Sscanf(value("/proc/meminfo", "MemTotal"), "%d kB", &kib); err == nil {
		m.MemoryGiB = kib >> 20
	}
	return m, nil
}

// commit is that of the working tree, with "+" if files differ from it.
func commit(ctx context.Context) (string, error) {
	b, err := exec.CommandContext(ctx, "git", "-C", root, "describe", "--always", "--exclude=*", "--dirty=+").Output()
	if err != nil {
		return "", fmt.Errorf("git describe: %w; records name the commit that they are of", err)
	}
	return strings.TrimSpace(string(b)), nil
}
