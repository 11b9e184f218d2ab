package seccomp

import "golang.org/x/sys/unix"

// filterArch is empty but for the architecture: arm64 has none of the calls of
// a time when paths were not relative to descriptors.
var filterArch = archRules{audit: unix.AUDIT_ARCH_AARCH64}
