package confine

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/seccomp"
)

// refusal returns why the file p must not be executed, or "".
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

// execute judges execve and execveat.
func (r *run) execute(n *seccomp.Call, dir int, pathAt, argvAt uint64, flags uint32) seccomp.Answer {
	tid := int(n.TID)
	name, err := seccomp.Path(tid, pathAt)
	if err != nil {
		return seccomp.Fail(err)
	}
	if name == "" && flags&unix.AT_EMPTY_PATH == 0 {
		return seccomp.Fail(unix.ENOENT)
	}
	p, err := r.grants.Load().lookup(tid, dir, name)
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
	starts := r.grants.Load().starts(idOf(&p.stat), tid, argvAt)
	if !r.listener.Valid(n) {
		return seccomp.Fail(unix.EFAULT)
	}
	if why := r.grants.Load().refusal(p, argv); why != "" && (!starts || p.exposed) {
		r.log.refused(p.path, why)
		return seccomp.Fail(unix.EACCES)
	}
	r.log.executed(p.path)
	return seccomp.GoOn()
}
