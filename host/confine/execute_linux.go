package confine

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"sync"

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

// fileID is a file, whatever its names are.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// canWrite reports whether the run may change what is at path, or in it.
func (g *grants) canWrite(path string) bool {
	return slices.ContainsFunc(g.write, func(dir string) bool { return beneath.Has(dir, path) })
}

// hides reports whether what is at path is kept from being read, or listed.
func (g *grants) hides(path string) bool {
	return g.leads[path] || isDevice(path) || slices.ContainsFunc(g.hidden, func(dir string) bool { return beneath.Has(dir, path) })
}

// isDevice reports whether path is one of a device. Those that every tool may use are
// granted one by one (openDevices): others are what people type into terminals, and the
// disks beneath all files.
func isDevice(path string) bool {
	return strings.HasPrefix(path, devices+"/") && !beneath.Has(devices+"/shm", path)
}

const devices = "/dev"

// holdsProgram reports whether the file at path was granted to be executed.
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

// refusal says why the file p is not executed, or "".
func (g *grants) refusal(p *found, argv []string) string {
	id := idOf(&p.stat)
	shell := IsShell(p.path)
	if filepath.Base(p.path) == "busybox" { // which is what it is called
		shell = len(argv) == 0 || IsShell(argv[0])
	}
	switch {
	case g.loaders[id] || isLoader(p.path):
		return "it is an ELF interpreter, which runs any file that it is given"
	case g.programs[id]:
	case shell:
		return RefusedShell
	case !slices.ContainsFunc(g.folders, func(dir string) bool { return beneath.Has(dir, p.path) }):
		return RefusedProgram
	}
	if p.exposed && !g.canWrite(p.path) {
		return "its path leads through a folder that the tool can write"
	}
	if shell && id != g.own && g.lines != nil && !slices.ContainsFunc(g.lines, func(line string) bool { return len(argv) > 2 && argv[1] == "-c" && isLine(argv[2], line) }) {
		return "it is a shell, and the policy does not name this command line"
	}
	return ""
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

// execute judges execve and execveat.
func (m *Monitor) execute(n *seccomp.Call, dir int, pathAt, argvAt uint64, flags uint32) seccomp.Answer {
	tid := int(n.TID)
	name, err := seccomp.Path(tid, pathAt)
	if err != nil {
		return seccomp.Fail(err)
	}
	if name == "" && flags&unix.AT_EMPTY_PATH == 0 {
		return seccomp.Fail(unix.ENOENT)
	}
	p, err := m.grants.Load().lookup(tid, dir, name)
	if err != nil {
		return seccomp.Fail(err)
	}
	defer p.close()
	if p.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return seccomp.Fail(unix.EACCES)
	}
	const scriptSize = 128 << 10 // the longest argument that the kernel takes
	var argv []string
	if IsShell(p.path) { // of which alone they are judged
		if argv, err = seccomp.Words(tid, argvAt, 2, scriptSize); err != nil {
			return seccomp.Fail(unix.EFAULT)
		}
	}
	starts := m.grants.Load().starts(idOf(&p.stat), tid, argvAt)
	if !m.listener.Valid(n) {
		return seccomp.Fail(unix.EFAULT)
	}
	if why := m.grants.Load().refusal(p, argv); why != "" && (!starts || p.exposed) {
		m.log.refused(p.path, why)
		return seccomp.Fail(unix.EACCES)
	}
	m.log.executed(p.path)
	return seccomp.GoOn()
}

// maxPrograms bounds how many programs of a run are kept by name, of those that
// were executed and of those that were refused.
const maxPrograms = 64

// programLog is what a run executed beside its own program.
type programLog struct {
	mu            sync.Mutex
	count, denied int
	list          []Program
}

func (l *programLog) executed(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count-l.denied <= maxPrograms {
		l.list = append(l.list, Program{Path: path})
	}
}

func (l *programLog) refused(path, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	if l.denied++; l.denied <= maxPrograms {
		l.list = append(l.list, Program{Path: path, Refused: why})
	}
}

// Programs are those that the run executed so far beside its own, or was refused,
// and how many there were of each.
func (m *Monitor) Programs() (list []Program, executed, refused int) {
	l := &m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list, l.count - l.denied, l.denied
}
