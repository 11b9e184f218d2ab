package host

import "runtime/debug"

// Version is the version of this build: the module's, or what the version
// control says of a build from a checkout.
func Version() string {
	if released != "" {
		return released
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "(devel)"
}

// released is the version of a release. The linker sets it: what the go command takes
// from version control depends on the kind of checkout.
var released string
