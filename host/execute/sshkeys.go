package execute

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/sshkey"
	"github.com/toold/toold/host/sshshim"
)

// gitSSH is the variable that names git's ssh. It counts more than core.sshCommand,
// whatever a repository says. The variant says which options git gives it.
const (
	gitSSH        = "GIT_SSH_COMMAND"
	gitSSHVariant = "GIT_SSH_VARIANT"
)

// agentSocket is the value of the operator's that names the socket of the daemon's
// agent.
const agentSocket = "SSH_AUTH_SOCK"

// sshKeys are the keys among secrets with which the daemon itself logs in to hosts,
// for a binary whose git is told in env to have that done. There is nothing in env
// that is a key. The program that git is told of is env[gitSSH].
func (e *Executor) sshKeys(secrets []secret, env map[string]string) (sshkey.Set, error) {
	c := e.Config.Config()
	keys := sshkey.Set{KnownHosts: c.KnownHosts()}
	for _, s := range secrets {
		if s.SSHSign {
			keys.Signer = &sshkey.Key{Name: s.name, PEM: s.value}
		}
		if s.SSHKey {
			key := sshkey.Key{Name: s.name, Host: s.Host, PEM: s.value}
			if public, ok := s.InAgent(); ok {
				socket, _ := c.Value(agentSocket)
				key = sshkey.Key{Name: s.name, Host: s.Host, Agent: socket, Public: public}
			}
			keys.Keys = append(keys.Keys, key)
		}
	}
	if keys.Keys == nil && keys.Signer == nil {
		return keys, nil
	}
	name := ""
	if keys.Signer != nil {
		name = keys.Signer.Name
	} else {
		name = keys.Keys[0].Name
	}
	if status := e.Runner.Confinement(); !status.Filter {
		return keys, fault.Errorf(fault.ToolBroken, "secret %s is a key for ssh, which only a tool is given whose connections are judged, and this system cannot do that; see toolctl doctor", name)
	}
	program, err := e.shims.program(filepath.Join(c.State, "ssh", sshshim.Name))
	if err != nil {
		return keys, fault.Errorf(fault.Internal, "provide git with an ssh: %w; see the daemon's state folder", err)
	}
	if strings.ContainsAny(program, "|&;<>()$`\\\"' \t\n*?[#~=%") {
		return keys, fault.Errorf(fault.Internal, "provide git with an ssh: git would give %q to a shell; move the daemon's state to a folder whose path has no such characters", program)
	}
	keys.Program = program
	if keys.Keys != nil {
		env[gitSSH], env[gitSSHVariant] = program, "ssh"
	}
	if keys.Signer != nil {
		// The policy of git names it without its folder, which it does not know.
		env["PATH"] = filepath.Dir(program) + ":" + env["PATH"]
	}
	return keys, nil
}

// shims are copies of this program under names with which it is one thing of a run and
// nothing else. The zero value makes each when it is first needed.
type shims struct {
	mu   sync.Mutex
	made map[string]bool // by path; nil: none
}

// program makes the copy at path, in the state folder, unless it is there, and returns
// path.
func (s *shims) program(path string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[path] {
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
		own, failed := os.Executable()
		if failed != nil {
			return "", failed
		}
		if from, err = os.Open(own); err != nil {
			return "", err
		}
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
	if s.made == nil {
		s.made = map[string]bool{}
	}
	s.made[path] = true
	return path, nil
}
