package seccomp

import "golang.org/x/sys/unix"

const (
	// setID are the bits of a mode with which a program runs as who owns it, made
	// those of open's flags with which its mode counts: O_CREAT, and O_TMPFILE
	// without O_DIRECTORY, which it has in it.
	setID = unix.S_ISUID | unix.S_ISGID
	made  = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

// archRules are the parts of the filter that differ between architectures.
type archRules struct {
	audit      uint32 // the architecture's AUDIT_ARCH
	attributes []uint32
	refused    []uint32
	creating   []rule
	modes      []rule
}

// creates are the tests of a call that makes a file with a mode, where flags, if
// that is not -1, say that it does. A program that runs as its owner would have the
// rights of the daemon's user, and no confinement, for whoever else can start it.
func creates(flags, mode int) []test {
	ids := []test{{arg: mode, op: anyBit, with: setID, then: refuse}}
	if flags < 0 {
		return ids
	}
	return []test{{arg: flags, op: anyBit, with: made, then: allow, but: ids}}
}

// modes are the tests of a call that sets a mode, which the supervisor then judges
// where it has such bits: a folder may have them.
func modes(mode int) []test {
	return []test{{arg: mode, op: anyBit, with: setID, then: notify}}
}
