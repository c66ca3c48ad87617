package verdict

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// took are effects of an account; "f" behind a number says that it was forgotten.
func took(key, numbers string) (effects []Effect) {
	for word := range strings.FieldsSeq(numbers) {
		e := Effect{Key: key, Forgotten: strings.HasSuffix(word, "f")}
		if _, err := fmt.Sscanf(word, "%d", &e.Number); err != nil {
			panic(err)
		}
		effects = append(effects, e)
	}
	return effects
}

// Effects that the database has forgotten, and may forget, come again at any time, and
// excuse nothing else.
func TestJudgeEffects_WhatWasForgottenMayComeAgain(t *testing.T) {
	for _, c := range []struct {
		name, effects string
		finds         []string
	}{
		{"in turn", "1 2 3 4", nil},
		{"later ones took effect before it came again", "1 2f 3f 4 2 3", nil},
		{"it came again before later ones", "1 2f 3f 2 3 4", nil},
		{"it never came again", "1 2f 3f 4", nil},
		{"only a part came again", "1 2f 3f 4 3", nil},
		{"copies came again in another order", "1 2f 3f 4 3 2", nil},
		{"it was forgotten twice", "1 2f 2f 3 2 4", nil},
		{"the same disorder without forgetting", "1 4 2 3", []string{
			"disorder: event 4 of a took effect after 1", "disorder: event 2 of a took effect after 4",
		}},
		{"another one was forgotten", "1 2f 4 3 2", []string{
			"disorder: event 4 of a took effect after 2", "disorder: event 3 of a took effect after 4",
		}},
		{"it was out of turn before it was forgotten", "1 3f 2 3 4", []string{
			"disorder: event 3 of a took effect after 1", "disorder: event 2 of a took effect after 3", "disorder: event 4 of a took effect after 2",
		}},
		{"it was forgotten only after a later one", "1 3 2f 4 2", []string{
			"disorder: event 3 of a took effect after 1", "disorder: event 2 of a took effect after 3", "disorder: event 4 of a took effect after 2",
		}},
		{"twice since it was forgotten", "1 2f 3 2 4 2", []string{"doubled: event 2 of a took effect again"}},
		{"twice before it was forgotten", "1 2 2f 3 4", []string{"doubled: event 2 of a took effect again"}},
		{"one that wasn't forgotten is missing", "1 2f 4", []string{
			"disorder: event 4 of a took effect after 2", "no effect: of 4 events of a 3 took effect",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			effects := append(took("b", "1 2"), took("a", c.effects)...)
			require.Equal(t, c.finds, JudgeEffects(map[string]int64{"a": 4, "b": 2}, effects))
		})
	}
	require.Equal(t, []string{"disorder: event 3 of a took effect after 1", "disorder: event 2 of a took effect after 3"},
		JudgeEffects(map[string]int64{"a": 3, "b": 2}, append(took("b", "1 2f"), took("a", "1 3 2")...)), "of another account")
	require.Equal(t, []string{"no effect: of 1 events of a 0 took effect"}, JudgeEffects(map[string]int64{"a": 1}, nil))
}
