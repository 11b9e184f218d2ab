package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
)

// Names in the folder of tools. No tool can have them: a daemon ignores them.
const (
	// addedFile, in a tool's folder, holds an added.
	addedFile = ".catalogue.json"
	// stagePrefix begins the name of a folder in which a tool is created or removed.
	stagePrefix = ".toolctl-"
	// keptSuffix ends the name of a file from the catalogue whose place is taken by the operator's own.
	keptSuffix = ".new"
)

// added records what was added from a catalogue, so that an update can tell what the operator has changed since.
type added struct {
	// Source is the catalogue as a folder or an address; empty is the built-in one.
	Source string            `json:"source,omitempty"`
	Commit string            `json:"commit,omitempty"`
	Files  map[string]string `json:"files"`
}

// choice holds the arguments of the verbs add, update and remove.
type choice struct {
	dir, from, commit string
	yes               bool
}

func (c *choice) flags(cmd *cobra.Command, source bool) {
	cmd.Flags().StringVar(&c.dir, "tools", "", "the folder of tools (default that of the daemon)")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask")
	if source {
		cmd.Flags().StringVar(&c.from, "from", "", "the catalogue: a folder, or the address of a git repository")
		cmd.Flags().StringVar(&c.commit, "commit", "", "the commit of the repository (default the one that its HEAD is at)")
	}
}

func addVerb(s *state) *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:   "add NAME...",
		Short: "Add tools of a catalogue, after showing what each may do",
		Long: `Copy tools of a catalogue into the daemon's folder of tools. What each may do is
shown first: what it runs, the programs, hosts, files and secrets that it is given,
whether a policy judges its calls, and whether it has a setup.sh, which the daemon runs;
and the sha256 of each of its files.

The catalogue is the one that came with toolctl, or with --from a folder, or a git
repository (https, ssh or a path with file://), of which a commit is read and nothing
is checked out or run. It has a catalogue.json with the sha256 of each file, which
toolctl tools catalogue makes; a file that differs, a link, a device, a path that leaves
the tool's folder, or more than 64 MiB are refused.

A tool appears at once and as a whole. What was added is recorded beside it.`,
		Example: `  toolctl tools add git curl
  toolctl tools add deploy --from https://git.example.com/ops/tools.git --commit 4f6a…`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			return s.changeTools(cmd.Context(), &c, func(f *toolsFolder) error {
				src, err := openSource(cmd.Context(), c.from, c.commit)
				if err != nil {
					return err
				}
				defer src.close()
				for _, name := range names {
					if err := f.add(name, src, c.from == ""); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.flags(cmd, true)
	return cmd
}

func updateVerb(s *state) *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:   "update [NAME...]",
		Short: "Update tools from the catalogues that they were added from",
		Long: `Update the named tools, or all that toolctl tools add has added, from their catalogues.
Rights that a tool gains or loses are shown first.

A file that was changed, removed or added since stays as it is. Where the catalogue
has changed it too, the catalogue's is put beside it with the ending .new.
A tool is replaced at once and as a whole; calls that run finish on the old version.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			return s.changeTools(cmd.Context(), &c, func(f *toolsFolder) error {
				return f.update(cmd.Context(), names)
			})
		},
	}
	c.flags(cmd, true)
	return cmd
}

func removeVerb(s *state) *cobra.Command {
	var c choice
	var discard bool
	cmd := &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove tools that were added from a catalogue",
		Long: `Remove the folders of tools that toolctl tools add has added. New calls of them are
refused at once; those that run finish. A tool with files that were changed or added
since is kept, unless --discard is given.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			return s.changeTools(cmd.Context(), &c, func(f *toolsFolder) error {
				for _, name := range names {
					if err := f.remove(name, discard); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.flags(cmd, false)
	cmd.Flags().BoolVar(&discard, "discard", false, "remove files too that were changed or added since")
	return cmd
}

func catalogueVerb(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "catalogue DIR",
		Short: "Write the catalogue.json of a folder of tools",
		Long: `Write DIR/catalogue.json, with the sha256 of every file of every tool in DIR, so that
toolctl tools add can take tools from there. Run it again when a file has changed.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, dirs []string) error {
			c, err := listCatalogue(dirs[0])
			if err != nil {
				return fmt.Errorf("list the catalogue: %w", err)
			}
			text, err := c.text()
			if err != nil {
				return err
			}
			file := filepath.Join(dirs[0], catalogueFile)
			if err := os.WriteFile(file+keptSuffix, text, 0o644); err != nil {
				return err
			}
			if err := os.Rename(file+keptSuffix, file); err != nil {
				return err
			}
			fmt.Fprintf(s.out, "%s: %s\n", file, strings.Join(sortedKeys(c.Tools), ", "))
			return nil
		},
	}
}

func (c *catalogue) text() ([]byte, error) {
	text, err := json.MarshalIndent(c, "", "  ")
	return append(text, '\n'), err
}

// toolsFolder is the folder of tools, locked so that only this process changes it.
type toolsFolder struct {
	s   *state
	c   *choice
	dir string
	in  *bufio.Reader
}

// changeTools finds and locks the folder of tools, and calls change on it.
func (s *state) changeTools(ctx context.Context, c *choice, change func(*toolsFolder) error) error {
	f := &toolsFolder{s: s, c: c, dir: c.dir, in: bufio.NewReader(s.in)}
	if f.dir == "" {
		status, err := client.NewAdmin(s.places().Admin).Status(ctx)
		if err != nil {
			return fmt.Errorf("%w; or name the folder: --tools DIR", daemonError(err))
		}
		f.dir = status.Tools
	}
	dir, err := os.Open(f.dir)
	if err != nil {
		return fmt.Errorf("open the folder of tools: %w", err)
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return fmt.Errorf("open the folder of tools: %w", err)
	}
	if disk.WritableByOthers(f.dir, info.Mode()) {
		return fmt.Errorf("%s has mode %04o: others than its owner decide what runs; chmod go-w %s", f.dir, info.Mode().Perm(), quote(f.dir))
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w; another toolctl changes it, try again when it has ended", f.dir, err)
	}
	// Under the lock, any stage is left over from a process that was killed.
	left, _ := filepath.Glob(filepath.Join(f.dir, stagePrefix+"*"))
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove what an earlier toolctl left: %w", err)
		}
	}
	return change(f)
}

// errDeclined means that the user did not confirm.
var errDeclined = errors.New("nothing was changed; --yes answers for you")

// ask asks the operator to confirm what was shown.
func (f *toolsFolder) ask(question string) error {
	if f.c.yes {
		return nil
	}
	fmt.Fprintf(f.s.out, "%s [y/N] ", question)
	line, _ := f.in.ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	fmt.Fprintln(f.s.out)
	return errDeclined
}

// installed reads the record of the tool name, and its current files: path to sha256, "" for anything but a regular
// file.
func (f *toolsFolder) installed(name string) (rec *added, now map[string]string, err error) {
	if !tools.ValidName(name) {
		return nil, nil, usageError{fmt.Errorf("%q cannot be the name of a tool", name)}
	}
	dir := filepath.Join(f.dir, name)
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read tool %s: %w; toolctl tools add adds it", name, err)
	}
	if !info.IsDir() {
		return nil, nil, fmt.Errorf("%s is not a folder of its own, and toolctl did not make it; change it where it is", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	text, err := readFile(root, addedFile, maxCatalogue)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("tool %s was not added by toolctl: %s is not there; change or remove its folder yourself", name, filepath.Join(dir, addedFile))
	}
	rec = new(added)
	if err == nil {
		err = strictjson.Unmarshal(text, rec)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w; remove the folder yourself and add the tool again", filepath.Join(dir, addedFile), err)
	}
	now = map[string]string{}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == addedFile {
			return err
		}
		if !d.Type().IsRegular() {
			now[name] = ""
			return nil
		}
		data, err := readFile(root, name, maxToolTotal)
		now[name] = digestOf(data)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read tool %s: %w", name, err)
	}
	return rec, now, nil
}

// add adds a tool that does not exist yet.
func (f *toolsFolder) add(name string, src *source, builtIn bool) error {
	files, err := src.tool(name)
	if err != nil {
		return err
	}
	to := filepath.Join(f.dir, name)
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s is there; toolctl tools update %s changes one that was added", to, name)
	}
	rights, err := rightsOf(name, files)
	if err != nil {
		return err
	}
	f.show(name, src, nil, rights)
	if err := f.ask("add " + name + "?"); err != nil {
		return err
	}
	stage, err := f.stage(src, name, builtIn, files)
	if err != nil {
		return err
	}
	if err := renameNew(stage, to); err != nil {
		return errors.Join(fmt.Errorf("add tool %s: %w", name, err), os.RemoveAll(stage))
	}
	fmt.Fprintf(f.s.out, "added    %s\n", to)
	return nil
}

// show prints the rights of a tool, or with old ones what changes, and the sha256 of its files.
func (f *toolsFolder) show(name string, src *source, old, rights []string) {
	from := src.name
	if src.commit != "" {
		from += " at " + src.commit
	}
	fmt.Fprintf(f.s.out, "%s, of %s:\n", name, printable(from))
	for _, r := range rights {
		mark := " "
		if old != nil && !slices.Contains(old, r) {
			mark = "+"
		}
		fmt.Fprintf(f.s.out, "  %s %s\n", mark, r)
	}
	for _, r := range old {
		if !slices.Contains(rights, r) {
			fmt.Fprintf(f.s.out, "  - %s\n", r)
		}
	}
	// In the format of sha256sum, to compare with what was reviewed.
	for _, file := range sortedKeys(src.list.Tools[name]) {
		fmt.Fprintf(f.s.out, "    %s  %s\n", src.list.Tools[name][file], file)
	}
}

// stage creates the folder of a tool next to its final place, with the record of it.
func (f *toolsFolder) stage(src *source, name string, builtIn bool, files map[string][]byte) (_ string, err error) {
	stage, err := os.MkdirTemp(f.dir, stagePrefix)
	if err != nil {
		return "", fmt.Errorf("make the folder of a tool: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(stage)
		}
	}()
	rec := added{Source: src.name, Commit: src.commit, Files: src.list.Tools[name]}
	if builtIn {
		rec.Source = ""
	}
	text, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return "", err
	}
	write := maps.Clone(files)
	write[addedFile] = append(text, '\n')
	for _, file := range sortedKeys(write) {
		if err := put(filepath.Join(stage, filepath.FromSlash(file)), write[file], 0o644); err != nil {
			return "", fmt.Errorf("write a file of tool %s: %w", name, err)
		}
	}
	// Whatever the umask is: the daemon may run as another user.
	return stage, filepath.WalkDir(stage, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		return err
	})
}

// put creates a file that must not exist, with its folders, and syncs it to disk.
func put(file string, data []byte, perm fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return errors.Join(err, out.Chmod(perm), out.Sync(), out.Close())
}

// update updates the named tools or, without names, all that were added.
func (f *toolsFolder) update(ctx context.Context, names []string) error {
	if len(names) == 0 {
		records, err := filepath.Glob(filepath.Join(f.dir, "*", addedFile))
		if err != nil {
			return err
		}
		for _, r := range records {
			if name := filepath.Base(filepath.Dir(r)); tools.ValidName(name) {
				names = append(names, name)
			}
		}
	}
	sources := map[string]*source{}
	defer func() {
		for _, src := range sources {
			src.close()
		}
	}()
	for _, name := range names {
		rec, now, err := f.installed(name)
		if err != nil {
			return err
		}
		from := first(f.c.from, rec.Source)
		src := sources[from]
		if src == nil {
			if src, err = openSource(ctx, from, f.c.commit); err != nil {
				return fmt.Errorf("update tool %s: %w", name, err)
			}
			sources[from] = src
		}
		if err := f.updateTool(name, src, rec, now, from == ""); err != nil {
			return err
		}
	}
	return nil
}

// updateTool replaces a tool with the catalogue's version. rec is what was added, now what is there. What differs from
// rec is the operator's and stays.
func (f *toolsFolder) updateTool(name string, src *source, rec *added, now map[string]string, builtIn bool) error {
	files, err := src.tool(name)
	if err != nil {
		return err
	}
	want := src.list.Tools[name]
	if maps.Equal(want, rec.Files) {
		fmt.Fprintf(f.s.out, "kept     %s: the catalogue has no other version\n", name)
		return nil
	}
	dir := filepath.Join(f.dir, name)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	before := map[string][]byte{}
	for file := range now {
		if now[file] != "" {
			if before[file], err = readFile(root, file, maxToolTotal); err != nil {
				return fmt.Errorf("read tool %s: %w", name, err)
			}
		}
	}
	m := merge(name, rec.Files, now, want, before, files)
	old, err := rightsOf(name, before)
	if err != nil {
		old = []string{"is broken: " + printable(err.Error())}
	}
	rights, err := rightsOf(name, m.result)
	if err != nil {
		return err
	}
	f.show(name, src, old, rights)
	for _, n := range m.notes {
		fmt.Fprintln(f.s.out, printable(n))
	}
	if err := f.ask("update " + name + "?"); err != nil {
		return err
	}
	regular := maps.Clone(m.result)
	for file := range m.own {
		delete(regular, file)
	}
	stage, err := f.stage(src, name, builtIn, regular)
	if err != nil {
		return err
	}
	for file := range m.own {
		if err := f.copyOwn(root, file, stage, m.result[file]); err != nil {
			return errors.Join(fmt.Errorf("keep %s of tool %s: %w", file, name, err), os.RemoveAll(stage))
		}
	}
	if err := exchange(stage, dir); err != nil {
		return errors.Join(fmt.Errorf("update tool %s: %w", name, err), os.RemoveAll(stage))
	}
	fmt.Fprintf(f.s.out, "updated  %s\n", dir)
	return os.RemoveAll(stage) // the old version
}

// merged is the result of an update of a tool.
type merged struct {
	result map[string][]byte // its new files
	own    map[string]bool   // the operator's files among them; a link is copied as a link
	notes  []string          // messages about the merge
}

// merge keeps what an operator changed, added or removed since a tool was added, and takes what the catalogue changed:
// was, is and want are the hashes of what was added, of what is there, and of what the catalogue has; before and files
// hold the contents of the latter two.
func merge(name string, was, is, want map[string]string, before, files map[string][]byte) (m merged) {
	m = merged{result: map[string][]byte{}, own: map[string]bool{}}
	all := maps.Clone(is)
	maps.Copy(all, was)
	maps.Copy(all, want)
	for _, file := range sortedKeys(all) {
		_, there := is[file]
		_, recorded := was[file]
		data, wanted := files[file]
		switch {
		case there == recorded && is[file] == was[file]: // as it was added, or only in the catalogue
			if wanted {
				m.result[file] = data
			}
		case !recorded && strings.HasSuffix(file, keptSuffix) && was[strings.TrimSuffix(file, keptSuffix)] != "":
			// From an earlier update, and outdated.
		default:
			what := map[bool]string{true: "changed", false: "removed"}[there]
			if there {
				m.result[file], m.own[file] = before[file], true
			}
			if there && !recorded {
				what = "added"
			}
			note := fmt.Sprintf("kept     %s: %s here", path.Join(name, file), what)
			if wanted && want[file] != was[file] && want[file] != is[file] {
				m.result[file+keptSuffix] = data
				note += "; the catalogue's is beside it, " + path.Base(file) + keptSuffix
			}
			m.notes = append(m.notes, note)
		}
	}
	return m
}

// copyOwn copies a file or a link that is the operator's.
func (f *toolsFolder) copyOwn(root *os.Root, file, stage string, data []byte) error {
	to := filepath.Join(stage, filepath.FromSlash(file))
	info, err := root.Lstat(file)
	switch {
	case err != nil:
		return err
	case info.Mode().IsRegular():
		return put(to, data, info.Mode().Perm())
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(file)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	return errors.New("it is neither a file nor a link; move it away")
}

// remove removes a tool that was added.
func (f *toolsFolder) remove(name string, discard bool) error {
	rec, now, err := f.installed(name)
	if err != nil {
		return err
	}
	var changed []string
	for file, is := range now {
		if rec.Files[file] != is {
			changed = append(changed, file)
		}
	}
	slices.Sort(changed)
	if len(changed) > 0 && !discard {
		return fmt.Errorf("tool %s has files that were changed or added since: %s; copy what you need and give --discard", name, printable(strings.Join(changed, ", ")))
	}
	if err := f.ask("remove " + name + "?"); err != nil {
		return err
	}
	stage, err := os.MkdirTemp(f.dir, stagePrefix)
	if err != nil {
		return err
	}
	dir := filepath.Join(f.dir, name)
	// First renamed away atomically, then deleted file by file.
	if err := os.Rename(dir, filepath.Join(stage, name)); err != nil {
		return errors.Join(fmt.Errorf("remove tool %s: %w", name, err), os.RemoveAll(stage))
	}
	fmt.Fprintf(f.s.out, "removed  %s\n", dir)
	return os.RemoveAll(stage)
}

// harmless lists the members of a definition that give a tool no rights.
var harmless = []string{
	"$schema", "description", "annotations", "schema", "timeout", "mutating", "idempotent", "stdin", "category",
	"environment_seen", "limits", "discovery", "reliability", "hash",
}

// rightsOf returns, one per line, what the tool in files may do. It prints every member of the definition that is not
// known to be harmless, as it is written, so a new member is shown too.
func rightsOf(name string, files map[string][]byte) ([]string, error) {
	def := tools.DefaultDefinition()
	text, defined := files[tools.DefinitionFile]
	if defined {
		if len(text) > tools.MaxDefinition {
			return nil, fmt.Errorf("read the definition of tool %s: it is larger than %s", name, tools.Size(tools.MaxDefinition))
		}
		var err error
		if def, err = tools.ParseDefinition(path.Join(name, tools.DefinitionFile), text); err != nil {
			return nil, fmt.Errorf("read the definition of tool %s: %w", name, err)
		}
	} else {
		text = []byte("{}")
	}
	var lines []string
	row := func(what, value string) {
		lines = append(lines, fmt.Sprintf("%-22s %s", printable(what), printable(value)))
	}
	_, handler := files["handler.wasm"]
	switch {
	case def.Binary != "":
		row("runs", "the binary "+def.Binary)
	case def.Handler != "" || def.WASI != "":
		row("runs", "the module "+first(def.Handler, def.WASI))
	case handler:
		row("runs", "the module handler.wasm")
	default:
		row("runs", "the binary "+name)
	}
	switch _, policy := files["restricted.wasm"]; {
	case policy:
		row("policy", "restricted.wasm judges each call")
	case def.Binary == "" && (handler || def.Handler != "" || def.WASI != ""):
		row("policy", "none: the module judges by itself")
	default:
		row("policy", "none: whoever reaches the socket may give it any arguments")
	}
	if _, setup := files["setup.sh"]; setup {
		row("setup.sh", "the daemon runs it, as its own user, before the tool")
	}
	if manifest, ok := files[def.Handler]; ok && strings.HasSuffix(def.Handler, ".json") {
		row("manifest", compact(manifest))
	}
	err := strictjson.Members(text, func(key, value []byte) {
		what := string(key)
		if slices.Contains(harmless, what) || what == "binary" || what == "handler" || what == "wasi" {
			return
		}
		if what == "capabilities" || what == "secrets" {
			if strictjson.Members(value, func(sub, v []byte) { row(what+" "+string(sub), compact(v)) }) == nil {
				return
			}
		}
		row(what, compact(value))
	})
	if err != nil {
		return nil, fmt.Errorf("read the definition of tool %s: %w", name, err)
	}
	return lines, nil
}

// compact returns a JSON text on one line.
func compact(text []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return string(text)
	}
	return b.String()
}

// printable escapes characters that do not print as themselves: a name chosen by others must not move the cursor, nor
// look like another one.
func printable(text string) string {
	quoted := strconv.QuoteToASCII(text)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
