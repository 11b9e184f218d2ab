package confine

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/seccomp"
)

// grants is what a confined run may execute and write, as its supervisor judges
// it.
type grants struct {
	write []string
	// hidden is what it may not read, and leads are the folders on the way there,
	// which it may not list.
	hidden []string
	leads  map[string]bool
	// programs are files, by what they are; folders are what lies beneath
	// them. Both are the operator's.
	programs map[fileID]bool
	folders  []string
	// loaders are the ELF interpreters of the programs. The kernel must be let
	// execute them to start a program; as a program they would run any file.
	loaders map[fileID]bool
	// interpreters are those of the run's own program that it starts itself.
	interpreters []started
	// own is the run's own program. lines are the only command lines for
	// another shell; nil: any.
	own   fileID
	lines []string
}

// started is a program that may be executed with arguments that begin with args,
// behind argv[0].
type started struct {
	program fileID
	args    []string
}

// fileID identifies a file independently of its names.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// canWrite reports whether the run may change what is at path, or in it.
func (g *grants) canWrite(path string) bool {
	return slices.ContainsFunc(g.write, func(dir string) bool { return beneath.Has(dir, path) })
}

// hides reports whether reading or listing path is prevented.
func (g *grants) hides(path string) bool {
	return g.leads[path] || isDevice(path) || slices.ContainsFunc(g.hidden, func(dir string) bool { return beneath.Has(dir, path) })
}

// isDevice reports whether path is that of a device. Those that every tool may use are granted
// one by one (openDevices): others are terminals that people type into, and the disks beneath
// all files.
func isDevice(path string) bool {
	return strings.HasPrefix(path, devices+"/") && !beneath.Has(devices+"/shm", path)
}

const devices = "/dev"

// holdsProgram reports whether executing the file at path was granted.
func (g *grants) holdsProgram(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && g.programs[idOf(&st)] {
		return true
	}
	return slices.ContainsFunc(g.folders, func(dir string) bool { return beneath.Has(dir, path) })
}

// isLoader reports whether the program at path is an ELF interpreter, by its
// name: a folder that was granted may hold one that no program needs.
func isLoader(path string) bool {
	name := filepath.Base(path)
	return name == "ld.so" || strings.HasPrefix(name, "ld-") && strings.Contains(name, ".so") || strings.HasPrefix(name, "ld64.so") || strings.HasPrefix(name, "ld.so.")
}

// starts reports whether the arguments at argvAt of the thread tid are those with
// which the program id, an interpreter, runs the run's own script.
func (g *grants) starts(id fileID, tid int, argvAt uint64) bool {
	return slices.ContainsFunc(g.interpreters, func(s started) bool {
		if s.program != id {
			return false
		}
		for i, want := range s.args {
			var pointer [8]byte
			if n, err := seccomp.Memory(tid, argvAt+uint64(8*(i+1)), pointer[:]); err != nil || n < len(pointer) {
				return false
			}
			got, cut, err := seccomp.Text(tid, binary.NativeEndian.Uint64(pointer[:]), len(want))
			if err != nil || cut || got != want {
				return false
			}
		}
		return true
	})
}

// isLine reports whether a shell is given line, or line with words in single
// quotes behind it, which are words to every shell.
func isLine(given, line string) bool {
	rest, ok := strings.CutPrefix(given, line)
	for ok && rest != "" {
		if rest, ok = strings.CutPrefix(rest, " "); !ok {
			return false
		}
		// A word is pieces in single quotes, and \' and \! between them.
		start := rest
		for {
			if after, quoted := strings.CutPrefix(rest, "'"); quoted {
				end := strings.IndexByte(after, '\'')
				if end < 0 {
					return false
				}
				rest = after[end+1:]
			} else if strings.HasPrefix(rest, `\'`) || strings.HasPrefix(rest, `\!`) {
				rest = rest[2:]
			} else {
				break
			}
		}
		ok = len(rest) < len(start)
	}
	return ok
}
