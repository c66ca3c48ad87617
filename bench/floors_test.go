package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatFellByMoreThanAFifthIsSaid(t *testing.T) {
	floors := map[string]float64{"save": 1, "drain": 0.5, "latency": 2, "wal": 4, "gone": 1, "broken": 1}
	verdicts := compare(floors, []reached{
		{name: "save", ratio: 0.81},
		{name: "drain", ratio: 0.39},
		{name: "latency", ratio: 2.4, less: true},
		{name: "wal", ratio: 5.1, less: true},
		{name: "broken"},
		{name: "first seen", ratio: 0.1},
	}, true)
	fell := map[string]bool{}
	for _, v := range verdicts {
		fell[v.name] = v.fell
	}
	require.Equal(t, map[string]bool{"save": false, "drain": true, "latency": false, "wal": true, "gone": true, "broken": true, "first seen": false}, fell)

	var table bytes.Buffer
	require.NoError(t, printVerdicts(&table, verdicts))
	require.Regexp(t, `(?m)^drain +0\.50 +0\.39 +-22 % +FELL$`, table.String())
	require.Regexp(t, `(?m)^latency +2\.00 +2\.40 +-17 % +$`, table.String())
	require.Regexp(t, `(?m)^first seen +- +0\.10 +- +$`, table.String())
}

func TestScenariosThatWereNotRunHaveNotFallen(t *testing.T) {
	require.Equal(t, []verdict{{name: "save", floor: 1, now: 2, change: 1}}, compare(map[string]float64{"save": 1, "drain": 1}, []reached{{name: "save", ratio: 2}}, false))
}

func TestFloorsAreReadAsTheyWereWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), floorsFile)
	none, err := readFloors(name)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoError(t, writeFloors(name, map[string]float64{"save": 1.23456, "drain": 0.6}))
	got, err := readFloors(name)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"save": 1.235, "drain": 0.6}, got)

	require.NoError(t, os.WriteFile(name, []byte("{"), 0o600))
	_, err = readFloors(name)
	require.ErrorContains(t, err, "floors --write")
}

// Every floor is of a scenario that there is, and has a limit to be compared with.
func TestEveryFloorHasItsScenario(t *testing.T) {
	floors, err := readFloors(floorsFile)
	require.NoError(t, err)
	limited := map[string]bool{}
	for _, s := range scenarios(short) {
		limited[s.name] = s.limit != nil || s.byHand != nil
	}
	for name := range floors {
		require.True(t, limited[name], name)
	}
}
