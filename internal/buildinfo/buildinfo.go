// Package buildinfo says which Waybill a program has been built with.
package buildinfo

import (
	"cmp"
	"runtime/debug"
)

const module = "github.com/waybill-go/waybill"

// Unknown stands for what the Go command didn't write down, as the commit of a version that
// came from a module proxy.
const Unknown = "unknown"

// Info is what the Go command wrote into the program. What it didn't know is [Unknown].
type Info struct {
	Version  string `json:"version"`  // of Waybill: v1.2.3, or "(devel)" out of a working tree
	Revision string `json:"revision"` // the commit that Waybill was built at; with "+dirty" if files had been changed
	Go       string `json:"go"`       // of the compiler
}

// Read returns that of this program.
func Read() Info {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		b = &debug.BuildInfo{}
	}
	return of(b)
}

// of tells Waybill's own commands, which have a revision, from programs that it is a dependency of.
func of(b *debug.BuildInfo) Info {
	info := Info{Go: cmp.Or(b.GoVersion, Unknown)}
	if b.Main.Path == module {
		info.Version = b.Main.Version
		dirty := ""
		for _, s := range b.Settings {
			switch {
			case s.Key == "vcs.revision":
				info.Revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+dirty"
			}
		}
		if info.Revision != "" {
			info.Revision += dirty
		}
	}
	for _, d := range b.Deps {
		if d.Path != module {
			continue
		}
		info.Version = d.Version
		if d.Replace != nil {
			info.Version = cmp.Or(d.Replace.Version, "(devel)")
		}
	}
	info.Version, info.Revision = cmp.Or(info.Version, Unknown), cmp.Or(info.Revision, Unknown)
	return info
}
