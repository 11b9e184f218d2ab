package execute

import (
	"path/filepath"
	"strings"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/sshkey"
	"github.com/toold/toold/host/sshshim"
)

// gitSSH is the variable that names git's ssh. It takes precedence over
// core.sshCommand, so a repository cannot change it. The variant determines the
// options that git passes.
const (
	gitSSH        = "GIT_SSH_COMMAND"
	gitSSHVariant = "GIT_SSH_VARIANT"
)

// sshKeys returns the keys among secrets with which the daemon itself logs in to
// hosts, and sets env so that the binary's git uses the daemon for that: env[gitSSH]
// names the program. No key is in env.
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
