package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/inode"
)

func setupVerb(s *state) *cobra.Command {
	var program string
	var only []string
	cmd := &cobra.Command{
		Use:   "setup DIR",
		Short: "Create the folder of a daemon: wrappers, definitions, sockets, configuration",
		Long: `Create in DIR what a daemon and the containers that call it share, and what is the
daemon's alone:

  tools/bin           tool-client and a link for each tool; mount it read-only
  tools/tools.d       the definitions of tools
  sockets             the folder of sockets; mount the folder, not a socket
  workspace           the root in which calls work
  state               what the daemon keeps, mode 0700
  config/toold.json   its configuration
  config/.env         values of secrets, mode 0600

What is there is kept, whoever made it: a second run changes nothing, and a file that
differs from the one that setup would write is reported. Permissions that would let
others run tools or read secrets, of DIR and of the folders above it, are an error, and
then nothing is created.`,
		Example: `  toolctl setup --only git,curl /srv/toold
  toold --config /srv/toold/config/toold.json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, dirs []string) error {
			if program == "" {
				var err error
				if program, err = beside(wrapper); err != nil {
					return err
				}
			}
			return s.setup(dirs[0], program, only)
		},
	}
	cmd.Flags().StringVar(&program, "client", "", "the tool-client to install (default the one in toolctl's folder, else on PATH)")
	cmd.Flags().StringSliceVar(&only, "only", nil, "the tools to make links for")
	return cmd
}

// place is a folder or file that setup creates.
type place struct {
	path string
	perm fs.FileMode
	// text is the content of a file; empty for a folder.
	text string
	file bool
	// never holds the bits that its mode must not have.
	never fs.FileMode
	why   string
}

// setupPlaces returns what setup creates in dir, an absolute path.
func setupPlaces(dir string) ([]place, error) {
	// In the order of the file's text; only settings that a daemon cannot derive.
	config, err := json.MarshalIndent(struct {
		Tools  string   `json:"tools"`
		Socket string   `json:"socket"`
		State  string   `json:"state"`
		Roots  []string `json:"roots"`
	}{filepath.Join(dir, "tools", "tools.d"), filepath.Join(dir, "sockets", "tool-0.sock"), filepath.Join(dir, "state"), []string{filepath.Join(dir, "workspace")}}, "", "  ")
	if err != nil {
		return nil, err
	}
	return []place{
		{path: ".", perm: 0o755, never: 0o022, why: "others could replace tools and configuration"},
		{path: "tools", perm: 0o755, never: 0o022, why: "others could run any tool"},
		{path: "tools/bin", perm: 0o755, never: 0o022, why: "others could replace the wrappers"},
		{path: "tools/tools.d", perm: 0o755, never: 0o022, why: "others could run any tool"},
		{path: "sockets", perm: 0o755, never: 0o022, why: "others could replace the socket"},
		{path: "workspace", perm: 0o755},
		{path: "state", perm: 0o700, never: 0o077, why: "it has results and records of every caller"},
		{path: "config", perm: 0o755, never: 0o022, why: "others could change the configuration"},
		{path: "config/toold.json", perm: 0o644, text: string(config) + "\n", file: true, never: 0o022, why: "others could change the configuration"},
		{path: "config/.env", perm: 0o600, text: "# NAME=value: what definitions of tools name as env:NAME\n", file: true, never: 0o077, why: "it has secrets"},
	}, nil
}

// setup creates what is missing under dir and reports it. It checks everything before it changes anything.
func (s *state) setup(dir, program string, names []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	places, err := setupPlaces(dir)
	if err != nil {
		return err
	}
	faults := checkAbove(dir)
	missing := map[string]bool{}
	for _, p := range places {
		path := filepath.Join(dir, p.path)
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
			missing[p.path] = true
		case err != nil:
			faults = append(faults, err)
		default:
			if err := p.check(path, info); err != nil {
				faults = append(faults, err)
			}
		}
	}
	if faults != nil {
		return fmt.Errorf("nothing was made: %w", errors.Join(faults...))
	}
	wrappers, err := lookWrappers(filepath.Join(dir, "tools", "bin"), program, names)
	if err != nil {
		return err
	}
	for _, p := range places {
		if err := s.makePlace(dir, p, missing[p.path]); err != nil {
			return err
		}
	}
	return s.makeWrappers(wrappers, names, false)
}

// checkAbove reports the existing folders above dir in which others could replace it.
func checkAbove(dir string) (faults []error) {
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		owner, other := 0, false
		if err == nil {
			owner, other = inode.Owner(info)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			faults = append(faults, err)
		case other:
			faults = append(faults, fmt.Errorf("%s belongs to user %d, who could replace what is in it; choose another folder, or chown it", above, owner))
		case info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
			faults = append(faults, fmt.Errorf("%s has mode %04o: everybody could replace what is in it; choose another folder, or chmod o-w %s", above, info.Mode().Perm(), above))
		}
		if above == filepath.Dir(above) {
			return faults
		}
	}
}

// check reports what is wrong with p, which already exists at path.
func (p place) check(path string, info fs.FileInfo) error {
	kind := map[bool]string{true: "regular file", false: "folder"}[p.file]
	if p.file && !info.Mode().IsRegular() || !p.file && !info.IsDir() {
		return fmt.Errorf("%s is not a %s; move it away", path, kind)
	}
	if owner, other := inode.Owner(info); p.never != 0 && other {
		return fmt.Errorf("%s belongs to user %d, who could change it; chown it to the daemon's user", path, owner)
	}
	if bad := info.Mode().Perm() & p.never; bad != 0 {
		return fmt.Errorf("%s has mode %04o: %s; chmod %04o %s", path, info.Mode().Perm(), p.why, info.Mode().Perm()&^p.never, path)
	}
	return nil
}

// makePlace creates p under dir if it is missing.
func (s *state) makePlace(dir string, p place, missing bool) error {
	path := filepath.Join(dir, p.path)
	if !missing {
		note := ""
		if p.file {
			text, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("read what is there: %w; run setup as the daemon's user", err)
			}
			if string(text) != p.text {
				note = ": changed since, and left as it is"
			}
		}
		fmt.Fprintf(s.out, "kept     %s%s\n", path, note)
		return nil
	}
	if !p.file {
		if err := os.MkdirAll(path, p.perm); err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		// Whatever the umask is: containers have other users.
		if err := os.Chmod(path, p.perm); err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		fmt.Fprintf(s.out, "created  %s\n", path)
		return nil
	}
	// O_EXCL: a file or link that appeared in the meantime is not written to or through.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, p.perm&0o700)
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	_, err = f.WriteString(p.text)
	if err = errors.Join(err, f.Chmod(p.perm), f.Close()); err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	fmt.Fprintf(s.out, "created  %s\n", path)
	return nil
}
