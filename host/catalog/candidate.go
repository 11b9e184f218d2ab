package catalog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
)

// Files in the restricted folder that apply to every tool.
const (
	globalPolicy = "_all.wasm"
	// globalNone is an empty file that confirms that _all.wasm was removed on
	// purpose.
	globalNone = "_all.none"
)

// Maximum sizes of files, in bytes.
const (
	maxModule = 256 << 20 // as the engine's
	maxSetup  = 1 << 20
)

// migrationPage describes how to turn the policies of older tool servers into
// modules.
const migrationPage = "docs/migrating-policies.md"

// layers are the places that a policy can come from.
type layers struct {
	global bool // for all tools
	own    bool // the tool's own, or the fallback of its name
}

// without reports whether l lacks a layer that other has.
func (l layers) without(other layers) bool {
	return other.global && !l.global || other.own && !l.own
}

// terms are what the daemon asks of the files of every tool.
type terms struct {
	// roots are Config.Roots when the files were read.
	roots         []string
	allowWritable bool
}

// module is the file of one module.
type module struct {
	place disk.Place
	file  string // for messages
	data  []byte
}

// candidate is a version of a tool as it was read from disk, before anything is
// compiled.
type candidate struct {
	name   string
	terms  terms
	dir    string
	digest string
	// gone is why there is no such tool, for the log; empty if there is one.
	gone string
	// err is what is wrong with the files: TOOL_BROKEN.
	err error

	def       *tools.Definition
	defSource module // that def was read from, without data if there is no file
	setup     module // setup.sh, without data if there is none
	// gitConfig is the value of GIT_CONFIG_GLOBAL in the tool's calls, if setup.sh
	// wrote that file.
	gitConfig string
	policyFiles
	payload
}

// policyFiles are the policies of a candidate.
type policyFiles struct {
	policies []module
	// present are the policies on disk, readable or not, in any language. legacy
	// reports that one of them is a script of an older tool server.
	present layers
	legacy  bool
	// globalNone reports that the operator confirmed that there is no policy for
	// all tools.
	globalNone bool
}

// payload is what calls of a candidate run: a binary, or a handler.
type payload struct {
	kind     tools.Kind
	binary   string
	programs []*disk.Program // the binary, or what capabilities.exec grants
	handler  module
	linked   []module // that the handler imports functions from, in the order of manifest.Modules
	manifest *guest.Manifest
}

// restricted is a file in the restricted folder.
func restricted(name string) disk.Place { return disk.Place{Restricted: true, Path: name} }

func broken(format string, args ...any) error {
	return fault.Errorf(fault.ToolBroken, format, args...)
}

// readCandidate returns the candidate that d holds. It reads and checks files; it compiles
// and runs nothing.
func readCandidate(d *disk.Disk, name string, terms terms) *candidate {
	v := &candidate{name: name, terms: terms}
	folder := d.Look(disk.Place{Path: name})
	switch {
	case !folder.Present():
		v.gone = "there is no such folder"
	case folder.Fault != "":
		v.gone = "its folder " + folder.Fault
	case !folder.Mode.IsDir():
		v.gone = "it is not a folder but " + folder.Kind()
	}
	if v.gone != "" {
		return v
	}
	in := func(file string) disk.Place { return disk.Place{Path: path.Join(name, file)} }

	legacy := v.findPolicies(d, in)
	if !d.Look(in(tools.DefinitionFile)).Present() && !d.Look(in(tools.HandlerFile)).Present() &&
		!slices.ContainsFunc([]string{tools.PolicyFile, "restricted.sh", "restricted.py"}, func(f string) bool { return d.Look(in(f)).Present() }) {
		v.gone = fmt.Sprintf("its folder has no %s, %s or %s", tools.DefinitionFile, tools.HandlerFile, tools.PolicyFile)
		return v
	}
	v.err = func() error {
		if dir, err := filepath.EvalSymlinks(d.Name(disk.Place{Path: name})); err != nil {
			return broken("read the folder of tool %s: %w", name, err)
		} else if v.dir, err = filepath.Abs(dir); err != nil {
			return broken("read the folder of tool %s: %w", name, err)
		}
		if legacy != "" {
			v.legacy = true
			return broken("tool %s has a policy of an older kind, %s, which this host neither runs nor ignores; turn it into a module as %s says, or remove it", name, legacy, migrationPage)
		}
		if err := v.readDefinition(d, in); err != nil {
			return err
		}
		if err := v.readModules(d, in); err != nil {
			return err
		}
		if err := v.checkHashes(d, in); err != nil {
			return err
		}
		if !terms.allowWritable {
			return v.checkWritable(d)
		}
		return nil
	}()
	v.shareGitConfig()
	v.findPrograms()
	v.sum()
	return v
}

// findPrograms finds the binary, or the programs that a module may execute, with
// the interpreters of those that are scripts.
func (v *candidate) findPrograms() {
	v.programs = nil
	if v.def == nil || v.err != nil {
		return
	}
	searchPath := tools.BinaryPath
	if own := v.def.Environment["PATH"]; own != "" {
		searchPath = own
	}
	names := []string{v.binary}
	if v.kind != tools.Binary {
		names = slices.DeleteFunc(slices.Clone(v.def.Capabilities.Exec), func(path string) bool {
			fi, err := os.Stat(path)
			return err == nil && fi.IsDir()
		})
	}
	for _, name := range names {
		p := disk.FindProgram(name, searchPath)
		p.Guard(v.terms.roots, v.terms.allowWritable)
		v.programs = append(v.programs, p)
	}
}

// findPolicies records which policies are on disk and returns the name of one that
// is a script, if there is one.
func (v *candidate) findPolicies(d *disk.Disk, in func(string) disk.Place) (legacy string) {
	layer := func(places ...disk.Place) (found bool) {
		for _, p := range places {
			if !d.Look(p).Present() {
				continue
			}
			found = true
			if legacy == "" && path.Ext(p.Path) != ".wasm" {
				legacy = d.Name(p)
			}
		}
		return found
	}
	all := func(base string) []disk.Place {
		return []disk.Place{restricted(base + ".wasm"), restricted(base + ".sh"), restricted(base + ".py")}
	}
	v.present.global = layer(all("_all")...)
	v.globalNone = d.Look(restricted(globalNone)).Present()
	own := layer(in(tools.PolicyFile), in("restricted.sh"), in("restricted.py"))
	fallback := layer(all(v.name)...)
	v.present.own = own || fallback
	return legacy
}

func (v *candidate) readDefinition(d *disk.Disk, in func(string) disk.Place) error {
	p := in(tools.DefinitionFile)
	v.def, v.defSource = tools.DefaultDefinition(), module{place: p, file: d.Name(p)}
	if d.Look(p).Present() {
		data, err := d.Read(p, tools.MaxDefinition)
		if err != nil {
			return broken("read the definition of tool %s: %s %w; replace the file", v.name, d.Name(p), err)
		}
		if v.def, err = tools.ParseDefinition(d.Name(p), data); err != nil {
			return broken("read the definition of tool %s: %w; docs/tools.md describes each field", v.name, err)
		}
		v.defSource.data = data
	}
	def := v.def
	switch {
	case def.Binary != "":
		v.kind, v.binary = tools.Binary, def.Binary
	case def.Handler != "":
		v.kind, v.handler.place = tools.Handler, in(def.Handler)
	case def.WASI != "":
		v.kind, v.handler.place = tools.WASI, in(def.WASI)
	case d.Look(in(tools.HandlerFile)).Present():
		v.kind, v.handler.place = tools.Handler, in(tools.HandlerFile)
	default:
		v.kind, v.binary = tools.Binary, v.name
		if def.Entry != nil {
			return broken("tool %s has an entry in %s but no handler: name the module in handler, or call it %s", v.name, d.Name(p), tools.HandlerFile)
		}
	}
	return nil
}

// readModules reads every module, the manifest and setup.sh.
func (v *candidate) readModules(d *disk.Disk, in func(string) disk.Place) error {
	policy := func(p disk.Place) error {
		m, err := v.readModule(d, p)
		if err != nil {
			return broken("load the policy of tool %s: %s %w; every call is refused until it loads: put a module there", v.name, d.Name(p), err)
		}
		v.policies = append(v.policies, m)
		return nil
	}
	if p := restricted(globalPolicy); d.Look(p).Present() {
		if err := policy(p); err != nil {
			return err
		}
	}
	if p := in(tools.PolicyFile); d.Look(p).Present() {
		if v.def.Policy == tools.PolicyNone {
			return broken("tool %s says \"policy\": \"none\" and has %s; remove one of them", v.name, d.Name(p))
		}
		if err := policy(p); err != nil {
			return err
		}
	} else if p := restricted(v.name + ".wasm"); d.Look(p).Present() {
		if err := policy(p); err != nil {
			return err
		}
	}

	if v.kind != tools.Binary {
		if err := v.readHandler(d); err != nil {
			return err
		}
	}
	if p := in(tools.SetupFile); d.Look(p).Present() {
		var err error
		if v.setup.data, err = d.Read(p, maxSetup); err != nil {
			return broken("set up tool %s: %s %w; replace it, or remove it if there is nothing to set up", v.name, d.Name(p), err)
		}
		v.setup.place, v.setup.file = p, d.Name(p)
		d.Look(in(gitConfig))
	}
	return v.checkUse(v.kind)
}

// checkUse refuses a definition that asks for what a tool of kind cannot use.
func (v *candidate) checkUse(kind tools.Kind) error {
	if err := tools.CheckUse(v.defSource.file, v.defSource.data, v.def, kind, v.setup.data != nil); err != nil {
		return broken("read the definition of tool %s: %w", v.name, err)
	}
	return nil
}

func (v *candidate) readModule(d *disk.Disk, p disk.Place) (module, error) {
	data, err := d.Read(p, maxModule)
	if err == nil && len(data) == 0 {
		err = errors.New("is empty")
	}
	return module{place: p, file: d.Name(p), data: data}, err
}

func (v *candidate) readHandler(d *disk.Disk) error {
	p := v.handler.place
	fail := func(p disk.Place, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return broken("load tool %s: %s does not exist; put the module there, or name another in %s", v.name, d.Name(p), tools.DefinitionFile)
		}
		return broken("load tool %s: %s %w; replace it", v.name, d.Name(p), err)
	}
	if path.Ext(p.Path) != ".json" {
		m, err := v.readModule(d, p)
		if err != nil {
			return fail(p, err)
		}
		v.handler = m
		return nil
	}
	data, err := d.Read(p, tools.MaxDefinition)
	if err != nil {
		return fail(p, err)
	}
	m, err := guest.ReadManifest(data)
	if err != nil {
		return fail(p, err)
	}
	v.manifest = m
	for _, named := range m.Modules {
		mod := module{place: p, file: d.Name(p), data: named.Data}
		if named.Path != "" {
			if !filepath.IsLocal(named.Path) || path.Ext(named.Path) != ".wasm" {
				return fail(p, fmt.Errorf("names the module %q, which is not a .wasm file beneath the tool's folder; put it there", named.Path))
			}
			file := disk.Place{Path: path.Join(v.name, path.Clean(named.Path))}
			if mod, err = v.readModule(d, file); err != nil {
				return fail(file, err)
			}
		}
		if sum := sha256.Sum256(mod.data); named.Hash != "" && named.Hash != hex.EncodeToString(sum[:]) {
			return broken("load tool %s: %s has the sha256 %x, and %s says %s; restore the module, or write the new sum if the change is meant", v.name, mod.file, sum, d.Name(p), named.Hash)
		}
		v.linked = append(v.linked, mod)
	}
	last := len(v.linked) - 1
	v.handler, v.linked = v.linked[last], v.linked[:last]
	if err := v.def.ApplyManifest(m, v.defSource.data); err != nil {
		return broken("load tool %s: %s %w", v.name, d.Name(p), err)
	}
	return nil
}

// checkHashes compares the files that were read with the pinned hashes.
func (v *candidate) checkHashes(d *disk.Disk, in func(string) disk.Place) error {
	for _, name := range slices.Sorted(maps.Keys(v.def.Hash)) {
		var data []byte
		p := in(path.Clean(name))
		switch {
		case v.kind != tools.Binary && p == v.handler.place:
			data = v.handler.data
		case p == in(tools.SetupFile):
			data = v.setup.data
		case slices.ContainsFunc(v.linked, func(m module) bool { return m.place == p }):
			i := slices.IndexFunc(v.linked, func(m module) bool { return m.place == p })
			data = v.linked[i].data
		case slices.ContainsFunc(v.policies, func(m module) bool { return m.place == p }):
			i := slices.IndexFunc(v.policies, func(m module) bool { return m.place == p })
			data = v.policies[i].data
		case p == in(tools.PolicyFile):
		default:
			return broken("tool %s pins the hash of %s, which is not one of its files; name restricted.wasm, setup.sh or the module that it runs", v.name, name)
		}
		if data == nil {
			return broken("tool %s pins the hash of %s, which does not exist; restore the file, or take the pin out of %s", v.name, d.Name(p), tools.DefinitionFile)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != v.def.Hash[name] {
			return broken("%s has the sha256 %x, and tool.json pins %s; restore the file, or pin the new sum if the change is meant", d.Name(p), sum, v.def.Hash[name])
		}
	}
	return nil
}

// checkWritable refuses a tool if users other than the owner can write any part of
// it: a policy does not bind those who can change it.
func (v *candidate) checkWritable(d *disk.Disk) error {
	byName := func(a, b disk.Place) int { return strings.Compare(d.Name(a), d.Name(b)) }
	seen := maps.Collect(d.Seen().All())
	for _, p := range slices.SortedFunc(maps.Keys(seen), byName) {
		if s := seen[p]; s.Fault == "" && disk.WritableByOthers(d.Name(p), s.Mode) {
			return broken(`%s can be written by others than its owner (mode %04o); run chmod go-w on it, or say "allow_writable_tools": true in toold.json`, d.Name(p), s.Mode.Perm())
		}
	}
	return nil
}

// installs reports whether setup.sh installs the tool's binary, and may restore it.
func (v *candidate) installs() bool { return v.setup.data != nil && v.kind == tools.Binary }

// forget drops what is in the module files of v; its digest stays.
func (v *candidate) forget() {
	v.handler.data = nil
	for _, ms := range [][]module{v.linked, v.policies} {
		for i := range ms {
			ms[i].data = nil
		}
	}
}

// sum computes the digest over everything that the version is made of.
func (v *candidate) sum() {
	h := sha256.New()
	add := func(label string, data []byte) {
		var n [8]byte
		for _, b := range [][]byte{[]byte(label), data} {
			binary.BigEndian.PutUint64(n[:], uint64(len(b)))
			h.Write(n[:])
			h.Write(b)
		}
	}
	add("definition", v.defSource.data)
	add("kind "+string(v.kind), []byte(v.binary))
	for _, m := range v.policies {
		add("policy "+m.place.Path, m.data)
	}
	add("handler "+v.handler.place.Path, v.handler.data)
	for _, m := range v.linked {
		add("linked "+m.place.Path, m.data)
	}
	if v.manifest != nil {
		add("manifest", v.manifest.Source)
	}
	add("setup", v.setup.data)
	add("git configuration", []byte(v.gitConfig))
	for _, p := range v.programs {
		if p.Digest != "" {
			add("program "+p.File, []byte(p.Digest))
		}
		if p.Err != nil {
			add("program error", []byte(p.Err.Error()))
		}
	}
	if v.err != nil {
		add("error", []byte(v.err.Error()))
	}
	v.digest = hex.EncodeToString(h.Sum(nil))
}

// checkRoots refuses roots of a tool that lie outside of the host's.
func (v *candidate) checkRoots() error {
	roots := v.terms.roots
	if len(roots) == 0 {
		return nil
	}
	for _, r := range v.def.Roots {
		if real, err := filepath.EvalSymlinks(r); err == nil {
			r = real // the host's roots are resolved as well
		}
		if !slices.ContainsFunc(roots, func(host string) bool { return beneath.Has(filepath.Clean(host), r) }) {
			return broken("tool %s narrows its roots to %s, which is beneath none of this host's (%s); name a folder beneath one of them, or start toold with --root %s", v.name, r, strings.Join(roots, ", "), r)
		}
	}
	return nil
}

// gitConfig is the file in a tool's folder that git config --global in setup.sh
// writes, and that the tool's calls read.
const gitConfig = "gitconfig"

// gitConfigVariable is the variable with the file that git uses instead of
// ~/.gitconfig.
const gitConfigVariable = "GIT_CONFIG_GLOBAL"

// shareGitConfig makes the tool's calls read what its setup.sh wrote with git config
// --global. Calls have a HOME for each caller; the tool's folder is one that all of
// them can read and none can write.
func (v *candidate) shareGitConfig() {
	file := filepath.Join(v.dir, gitConfig)
	if v.def == nil || v.setup.data == nil {
		return
	}
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return
	}
	if _, own := v.def.Environment[gitConfigVariable]; own {
		return
	}
	for _, s := range v.def.Secrets {
		if s.Env == gitConfigVariable || s.File == gitConfigVariable {
			return
		}
	}
	v.def.Environment = maps.Clone(v.def.Environment)
	if v.def.Environment == nil {
		v.def.Environment = map[string]string{}
	}
	v.def.Environment[gitConfigVariable], v.gitConfig = file, file
}
