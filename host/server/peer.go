package server

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
)

// Peer identifies the other end of a connection, from the kernel.
type Peer struct {
	UID uint32
	GID uint32
	PID int // 0: in a process namespace that this process cannot see
	// Ended reports whether the process has ended since, so that its number
	// may be another's. It is false if the kernel does not record it.
	Ended func() bool
	// Container returns the id of the container that the process is in, as its
	// control group is named; empty: none is known, or the process has ended.
	Container func() string
	// Focus is used by the Handler only and is discarded with the connection: the
	// session of calls that name none. It is never nil.
	Focus *atomic.Pointer[string]
}

// maxCgroup is how much of a process's control groups is read, in bytes.
const maxCgroup = 16 << 10

// containerOf returns the id of the container that the peer's process is in. Nothing
// is decided by it: it is only shown to people.
func containerOf(p Peer) string {
	if p.PID <= 0 {
		return ""
	}
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(p.PID), "cgroup"))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	if err != nil || p.Ended() { // the number may have been another process's
		return ""
	}
	return containerIn(text)
}

// containerIn finds the id of a container, 64 hexadecimal digits, in the contents of
// /proc/PID/cgroup: the outermost, since root in a container chooses the names
// below.
func containerIn(cgroup []byte) string {
	for line := range bytes.Lines(cgroup) {
		for at := 0; at < len(line); at++ {
			n := 0
			for at+n < len(line) && isHex(line[at+n]) {
				n++
			}
			if n == containerID {
				return string(line[at : at+n])
			}
			at += n
		}
	}
	return ""
}

const containerID = 64

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }
