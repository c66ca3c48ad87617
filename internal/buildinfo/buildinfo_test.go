package buildinfo

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	t.Parallel()
	settings := []debug.BuildSetting{{Key: "vcs.revision", Value: "c0ffee"}, {Key: "vcs.modified", Value: "true"}}
	for name, c := range map[string]struct {
		build debug.BuildInfo
		want  Info
	}{
		"installed": {debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: module, Version: "v1.2.3"}}, Info{"v1.2.3", "unknown", "go1.26"}},
		"a clone":   {debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: module, Version: "(devel)"}, Settings: settings}, Info{"(devel)", "c0ffee+dirty", "go1.26"}},
		// The revision is the program's, not Waybill's.
		"a dependency": {debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "example.com/shop"}, Settings: settings, Deps: []*debug.Module{{Path: module, Version: "v1.2.3"}}}, Info{"v1.2.3", "unknown", "go1.26"}},
		"replaced":     {debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "example.com/shop"}, Deps: []*debug.Module{{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "../waybill"}}}}, Info{"(devel)", "unknown", "go1.26"}},
		"nothing":      {debug.BuildInfo{}, Info{"unknown", "unknown", "unknown"}},
	} {
		require.Equal(t, c.want, of(&c.build), name)
	}
	require.NotEqual(t, "unknown", Read().Go)
}
