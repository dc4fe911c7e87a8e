// Package version says which build this is.
package version

// What the linker sets in builds of the Makefile and the Dockerfile.
var (
	Version = "dev"
	Commit  = "unknown"
)
