package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/inode"
	"github.com/toold/toold/host/tools"
)

const wrapper = "tool-client"

func installVerb(s *state) *cobra.Command {
	var program string
	var only []string
	var prune bool
	cmd := &cobra.Command{
		Use:   "install DIR",
		Short: "Create a wrapper for every tool in a folder",
		Long: `Put tool-client into DIR, and a link to it under the name of each tool that the
daemon has, or where --socket or TOOL_SOCKET is a socket with categories, that it serves: with DIR first on its PATH and TOOL_SOCKET set, git in a container
runs the daemon's git.

A file in DIR that is neither tool-client nor a link to it is never replaced:
then nothing is created, and the conflicting files are named.`,
		Example: `  toolctl install /opt/tools/bin
  toolctl install --only git,curl ./bin    # no daemon needed`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			names := only
			if len(names) == 0 {
				admin := client.NewAdmin(s.places().Admin)
				list, err := admin.Tools(cmd.Context())
				if err == nil {
					list, err = s.served(cmd.Context(), admin, list)
				}
				if err != nil {
					return fmt.Errorf("%w; or name the tools: --only git,curl", daemonError(err))
				}
				for _, t := range list {
					if tools.ValidName(t.Name) { // the list includes tools with invalid names
						names = append(names, t.Name)
					}
				}
			}
			if program == "" {
				var err error
				if program, err = beside(wrapper); err != nil {
					return err
				}
			}
			return s.install(dirs[0], program, names, prune)
		},
	}
	cmd.Flags().StringVar(&program, "client", "", "the tool-client to install (default the one in toolctl's folder, else on PATH)")
	cmd.Flags().StringSliceVar(&only, "only", nil, "the tools to make links for, instead of asking the daemon")
	cmd.Flags().BoolVar(&prune, "prune", false, "remove links to tool-client whose tool is gone")
	return cmd
}

// install creates what is missing and reports it. It checks everything before it changes anything.
func (s *state) install(dir, program string, names []string, prune bool) error {
	w, err := lookWrappers(dir, program, names)
	if err != nil {
		return err
	}
	return s.makeWrappers(w, names, prune)
}

// wrappers describes the current and the desired content of a folder of wrappers.
type wrappers struct {
	dir string
	// code is the program; old and copied report whether any copy, or this one, exists.
	code          []byte
	old, copied   bool
	missing, kept []string
}

// lookWrappers compares dir with the desired content. A conflicting file is an error.
func lookWrappers(dir, program string, names []string) (*wrappers, error) {
	for _, n := range names {
		if n == "" || n == wrapper || n != filepath.Base(n) || strings.HasPrefix(n, ".") {
			return nil, usageError{fmt.Errorf("%q is not a tool name", n)}
		}
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("read tool-client: %w", err)
	}
	w := &wrappers{dir: dir, code: code}
	var foreign []string
	target := filepath.Join(dir, wrapper)
	old, err := os.ReadFile(target)
	same := bytes.Equal(old, code)
	// A copy with the same bytes that another user can change is replaced.
	w.old, w.copied = old != nil, same && onlyOurs(target)
	if err == nil && !same && !isWrapper(target) {
		foreign = append(foreign, target)
	}
	for _, n := range names {
		path := filepath.Join(dir, n)
		switch link, err := os.Readlink(path); {
		case errors.Is(err, fs.ErrNotExist):
			w.missing = append(w.missing, n)
		case err == nil && leadsTo(dir, link):
			w.kept = append(w.kept, n)
		default:
			foreign = append(foreign, path)
		}
	}
	if len(foreign) > 0 {
		return nil, fmt.Errorf("nothing was made: %s in the way and not ours; choose a folder of their own for the wrappers, or move that away",
			strings.Join(foreign, ", ")+map[bool]string{true: " are", false: " is"}[len(foreign) > 1])
	}
	return w, nil
}

// makeWrappers creates what is missing in w.
func (s *state) makeWrappers(w *wrappers, names []string, prune bool) error {
	dir, target := w.dir, filepath.Join(w.dir, wrapper)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of wrappers: %w", err)
	}
	if w.copied {
		fmt.Fprintf(s.out, "kept     %s\n", target)
	} else {
		// Renamed into place: a running wrapper keeps its file.
		tmp, err := os.CreateTemp(dir, "."+wrapper+"-*")
		if err != nil {
			return fmt.Errorf("copy tool-client: %w", err)
		}
		defer os.Remove(tmp.Name())
		_, err = tmp.Write(w.code)
		err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
		if err == nil {
			err = os.Rename(tmp.Name(), target)
		}
		if err != nil {
			return fmt.Errorf("copy tool-client: %w", err)
		}
		fmt.Fprintf(s.out, "%s  %s\n", map[bool]string{true: "updated", false: "copied "}[w.old], target)
	}
	for _, n := range w.missing {
		path := filepath.Join(dir, n)
		if err := os.Symlink(wrapper, path); err != nil {
			return fmt.Errorf("make a wrapper: %w", err)
		}
		fmt.Fprintf(s.out, "linked   %s -> %s\n", path, wrapper)
	}
	for _, n := range w.kept {
		fmt.Fprintf(s.out, "kept     %s -> %s\n", filepath.Join(dir, n), wrapper)
	}
	if prune {
		return s.prune(dir, names)
	}
	return nil
}

func (s *state) prune(dir string, names []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read the folder of wrappers: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		link, err := os.Readlink(path)
		if err != nil || !leadsTo(dir, link) || slices.Contains(names, e.Name()) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the wrapper of a tool that is gone: %w", err)
		}
		fmt.Fprintf(s.out, "removed  %s: no tool of that name\n", path)
	}
	return nil
}

// leadsTo reports whether a link in dir leads to the tool-client in dir: a tool-client elsewhere may belong to anyone.
func leadsTo(dir, link string) bool {
	if !filepath.IsAbs(link) {
		return filepath.Clean(link) == wrapper
	}
	dir, err := filepath.Abs(dir)
	return err == nil && filepath.Clean(link) == filepath.Join(dir, wrapper)
}

// onlyOurs reports whether only this user and root can write to the file at path.
func onlyOurs(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	_, other := inode.Owner(info)
	return !other && info.Mode().Perm()&0o022 == 0
}

// isWrapper reports whether the program at path was built as tool-client, of
// whatever version.
func isWrapper(path string) bool {
	info, err := buildinfo.ReadFile(path)
	return err == nil && strings.HasSuffix(info.Path, "/cmd/"+wrapper)
}

// beside finds one of our programs: in this program's folder, else on PATH.
func beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		path := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside toolctl nor on PATH; make build makes it", name)
	}
	return path, nil
}
