package execute

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/lfsshim"
	"github.com/toold/toold/host/tools"
)

// lfsKey is the value of a tool's configuration that the daemon sets: the folder with
// the programs through which git starts git-lfs.
const lfsKey = "git_lfs"

// grantedLFS returns the git-lfs that a binary is granted, or "".
func grantedLFS(t *tools.Tool) string {
	if t.Kind != tools.Binary {
		return ""
	}
	i := slices.IndexFunc(t.Def.Capabilities.Exec, func(path string) bool { return filepath.Base(path) == lfsshim.Program })
	if i < 0 {
		return ""
	}
	return t.Def.Capabilities.Exec[i]
}

// lfsFolder returns that folder for the calls of a binary that is granted git-lfs,
// and the path of that git-lfs. Both are "" if none is granted, or if git would need
// a shell to run programs in the folder.
func (e *Executor) lfsFolder(p *call.Pinned) (folder, program string) {
	if program = grantedLFS(p.Tool); program == "" {
		return "", ""
	}
	sum := sha256.Sum256([]byte(program))
	folder = filepath.Join(e.Config.Config().State, "lfs", hex.EncodeToString(sum[:8]))
	if strings.ContainsAny(folder, "|&;<>()$`\\\"' \t\n*?[#~=%") {
		return "", ""
	}
	return folder, program
}

// withLFS returns the configuration of p's tool, with the keys that the daemon sets.
func (e *Executor) withLFS(p *call.Pinned) map[string]string {
	config := p.Effective.Config
	folder, _ := e.lfsFolder(p)
	if _, set := config[lfsKey]; folder == "" && !set {
		return config
	}
	if config = maps.Clone(config); config == nil {
		config = map[string]string{}
	}
	delete(config, lfsKey)
	if folder != "" {
		config[lfsKey] = folder
	}
	return config
}

// lfs makes the folder of p's calls, if they have one, and returns it. It puts the
// folder first in PATH of env, where git finds its subcommand lfs.
func (e *Executor) lfs(p *call.Pinned, env map[string]string) (folder string, err error) {
	folder, program := e.lfsFolder(p)
	if folder == "" {
		return "", nil
	}
	shim, err := e.shims.program(filepath.Join(folder, lfsshim.Name))
	for name, to := range map[string]string{lfsshim.Hook: lfsshim.Name, lfsshim.Program: program} {
		if err == nil {
			err = link(to, filepath.Join(filepath.Dir(shim), name))
		}
	}
	if err != nil {
		return "", fault.Errorf(fault.Internal, "provide git with git-lfs: %w; see the daemon's state folder", err)
	}
	env["PATH"] = folder + ":" + env["PATH"]
	return folder, nil
}

// link makes a link to to at path, unless it exists.
func link(to, path string) error {
	if found, err := os.Readlink(path); err == nil && found == to {
		return nil
	}
	if err := os.Symlink(to, path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	if found, err := os.Readlink(path); err == nil && found == to {
		return nil // a concurrent call made it
	}
	return errors.Join(os.Remove(path), os.Symlink(to, path))
}
