package execute

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// binaryPath is the PATH of every binary; the caller's is never used.
const binaryPath = "/usr/local/bin:/usr/bin:/bin"

// environment returns the environment of every binary of p's tool, which inherits
// nothing of the daemon's.
func environment(p *call.Pinned, home, trace string, s confine.Status) map[string]string {
	env := map[string]string{
		"PATH":   binaryPath,
		"LANG":   "C.UTF-8",
		"HOME":   home,
		"TMPDIR": filepath.Join(home, "tmp"),
	}
	if s.Filter && !s.Namespaces { // otherwise resolv.conf says so
		env["RES_OPTIONS"] = resolverOptions
	}
	if trace != "" {
		env["TRACEPARENT"] = trace
	}
	if id := p.PassedTraceID(); id != "" {
		env["TOOLD_TRACE_ID"] = id
	}
	maps.Copy(env, p.Tool.Def.Environment)
	return env
}

// confine returns what a binary of p's tool may write and execute, and what it may
// not read: the daemon's own files, and the secrets of every tool. Its own secrets
// are in its environment.
func (e *Executor) confine(p *call.Pinned, home string, exec []string) process.Confine {
	c := e.Config.Config()
	hide := append([]string{c.State}, e.SecretFiles()...)
	for _, file := range []string{c.File, c.DotEnv(), c.KnownHosts(), c.Identity.JWKS} {
		if file != "" {
			hide = append(hide, file)
		}
	}
	least, _ := confine.ParseLevel(c.LeastConfinement())
	sockets := []string{c.Socket, c.Admin}
	for _, s := range c.Sockets {
		sockets = append(sockets, s.Path)
	}
	// A path that the operator sets in the environment must be visible, wherever it
	// is.
	var show []string
	for _, value := range p.Tool.Def.Environment {
		if filepath.IsAbs(value) {
			show = append(show, filepath.Clean(value))
		}
	}
	slices.Sort(show)
	for _, file := range e.CertificateFiles() {
		if !isSystems(file) && !slices.ContainsFunc(show, func(dir string) bool { return beneath.Has(dir, file) }) {
			hide = append(hide, file)
		}
	}
	return process.Confine{
		User:    p.Tool.User,
		Show:    show,
		Sockets: sockets,
		Write:   append([]string{home}, p.Roots...),
		Exec:    exec,
		Hide:    hide,
		Least:   least,
	}
}

// systemCertificates has the folders of the system's authorities, which binaries
// need.
var systemCertificates = []string{"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share", "/usr/local/share", "/usr/lib/ssl", "/nix/store"}

// isSystems reports whether a certificate is the system's, by any name.
func isSystems(file string) bool {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return slices.ContainsFunc(systemCertificates, func(dir string) bool { return beneath.Has(dir, file) })
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// makeHome makes the HOME of one identity for one tool, so that identities share no
// configuration, caches or credentials. What an earlier call made of it that no other
// could use, it mends.
func makeHome(state string, p *call.Pinned) (string, error) {
	home := filepath.Join(state, "home", p.Tool.Name, p.Caller.ID)
	if !usable(os.Lstat(home)) || !usable(os.Lstat(filepath.Join(home, "tmp"))) {
		if err := mendHome(home); err != nil {
			return "", fault.Errorf(fault.Internal, "make a HOME for the call: %w; remove %s, which holds nothing but what this tool keeps for this caller", err, home)
		}
	}
	if u := p.Tool.User; u != nil {
		for _, dir := range []string{home, filepath.Join(home, "tmp")} {
			if err := os.Lchown(dir, int(u.UID), int(u.GID)); err != nil {
				return "", fault.Errorf(fault.Internal, "give the HOME of the call to user %d: %w; see the daemon's state folder", u.UID, err)
			}
		}
	}
	return home, nil
}

// usable reports whether what os.Lstat found is a folder that is open to its owner.
func usable(fi os.FileInfo, err error) bool {
	return err == nil && fi.IsDir() && fi.Mode()&0o700 == 0o700
}

// mendHome makes home and its tmp folders that are open to their owner. A tool of the
// same identity may change what is in home meanwhile, and only that is changed here.
func mendHome(home string) error {
	if err := errors.Join(os.MkdirAll(home, 0o700), os.Chmod(home, 0o700)); err != nil {
		return err
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return err
	}
	defer root.Close()
	if fi, err := root.Lstat("tmp"); err == nil && !fi.IsDir() {
		if err := root.Remove("tmp"); err != nil {
			return err
		}
	}
	if err := root.Mkdir("tmp", 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.Chmod("tmp", 0o700)
}
