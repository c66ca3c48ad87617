package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/waybill-go/waybill/contract"
)

type contractCmd struct {
	Old string `arg:"" help:"The contract that is deployed: a contract.json."`
	New string `arg:"" help:"The new contract. This command doesn't know a program's domain; the program prints its contract with contract.Of."`
}

func (c contractCmd) Run(all *cli, stdout out) error {
	old, err := readContract(c.Old)
	if err != nil {
		return &usageError{err}
	}
	next, err := readContract(c.New)
	if err != nil {
		return &usageError{err}
	}
	if old.Context != next.Context {
		return &usageError{fmt.Errorf("%s is of context %q and %s of %q: compare contracts of one context", c.Old, old.Context, c.New, next.Context)}
	}
	breaks := contract.Compare(old, next)
	switch {
	case all.JSON:
		if err := writeJSON(stdout, map[string]any{"context": old.Context, "breaks": append([]contract.Break{}, breaks...)}); err != nil {
			return err
		}
	case len(breaks) == 0:
		fmt.Fprintf(stdout, "%s: no breaking changes.\n", old.Context)
	}
	if !all.JSON {
		for _, b := range breaks {
			fmt.Fprintln(stdout, b)
		}
	}
	if len(breaks) > 0 {
		return fmt.Errorf("%d breaking differences", len(breaks))
	}
	return nil
}

func readContract(path string) (*contract.Contract, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c contract.Contract
	if err := json.Unmarshal(text, &c); err != nil || c.Context == "" || c.Messages == nil {
		return nil, fmt.Errorf("%s is no contract of a context, such as contracttest keeps and contract.Of makes", path)
	}
	return &c, nil
}
