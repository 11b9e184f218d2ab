package execute

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/fault"
)

// gitSSH is the variable that names git's ssh. It counts more than core.sshCommand,
// whatever a repository says. The variant says which options git gives it.
const (
	gitSSH        = "GIT_SSH_COMMAND"
	gitSSHVariant = "GIT_SSH_VARIANT"
)

// sshKeys are the keys among secrets with which the daemon itself logs in to hosts,
// for a binary whose git is told in env to have that done. There is nothing in env
// that is a key. The program that git is told of is env[gitSSH].
func (e *Executor) sshKeys(secrets []secret, env map[string]string) (egress.SSH, error) {
	c := e.Config.Config()
	keys := egress.SSH{KnownHosts: c.KnownHosts()}
	for _, s := range secrets {
		if s.SSHKey {
			keys.Keys = append(keys.Keys, egress.SSHKey{Name: s.name, Host: s.Host, PEM: s.value})
		}
	}
	if keys.Keys == nil {
		return keys, nil
	}
	if status := e.Runner.Confinement(); !status.Filter {
		return keys, fault.Errorf(fault.ToolBroken, "secret %s is a key for ssh, which only a tool is given whose connections are judged, and this system cannot do that; see toolctl doctor", keys.Keys[0].Name)
	}
	program, err := e.shim.program(c.State)
	if err != nil {
		return keys, fault.Errorf(fault.Internal, "provide git with an ssh: %w; see the daemon's state folder", err)
	}
	if strings.ContainsAny(program, "|&;<>()$`\\\"' \t\n*?[#~=%") {
		return keys, fault.Errorf(fault.Internal, "provide git with an ssh: git would give %q to a shell; move the daemon's state to a folder whose path has no such characters", program)
	}
	env[gitSSH], env[gitSSHVariant] = program, "ssh"
	return keys, nil
}

// shim is this program under the name with which it is the ssh of a run and nothing
// else. The zero value makes it when it is first needed.
type shim struct {
	mu   sync.Mutex
	path string // empty: not made
}

// program is its path, in the state folder.
func (s *shim) program(state string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := filepath.Join(state, "ssh", egress.ShimName)
	if s.path == path {
		if _, err := os.Lstat(path); err == nil {
			return path, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	// Another daemon, of another version, may have made it: it is made anew, and
	// runs that have it keep theirs.
	from, err := os.Open("/proc/self/exe") // also after it was replaced on disk
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(path), "")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		os.Remove(to.Name())
		return "", err
	}
	s.path = path
	return path, nil
}
