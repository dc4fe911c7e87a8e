// Package version says which build this is.
package version

import "runtime/debug"

// Version is set by the linker in released builds.
var Version = "dev" //nolint:gochecknoglobals // the linker sets it

// Commit returns the revision that the binary was built from, or "unknown".
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "unknown"
}
