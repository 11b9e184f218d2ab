package tools

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// BinaryPath is the search path for binaries that are given as a bare name. The
// daemon's own PATH is not used.
const BinaryPath = "/usr/local/bin:/usr/bin:/bin"

// migrationPage describes how to turn the policies of older tool servers into
// modules.
const migrationPage = "docs/migrating-policies.md"

// describeTimeout limits the call of describe at load. It is generous, since fuel
// limits the work and a machine that compiles many tools is busy.
const describeTimeout = 30 * time.Second

// Kind is how a tool executes.
type Kind string

const (
	Binary  Kind = "binary"  // a program of this host
	Handler Kind = "handler" // an export of a module
	WASI    Kind = "wasi"    // a WASI preview 1 command
)

// Tool is one generation of a tool. It is immutable; it and its modules may be used
// from Acquire until the release.
type Tool struct {
	Name string
	// Version identifies the content of the generation: the first half of the
	// sha256 over everything that it was made of, in hex. Generations made of the
	// same files have the same version.
	Version string
	Kind    Kind
	Def     *Definition
	// Dir is the tool's folder, with symbolic links resolved.
	Dir string
	// Policies are asked in this order before every call: the policy for all
	// tools, then the tool's own or its fallback. PolicyFiles are their files,
	// PolicyDigests the sha256 of these in hex.
	Policies      []*guest.Module
	PolicyFiles   []string
	PolicyDigests []string
	// Handler is the module, for the kinds Handler and WASI. HandlerFile is its
	// file, HandlerDigest its sha256 in hex.
	Handler       *guest.Module
	HandlerFile   string
	HandlerDigest string
	// Entry is how Handler is called; its Export is "handle" unless tool.json
	// says otherwise. Nil for the other kinds.
	Entry *Entry
	// Discovers reports whether Handler offers tools of its own for each identity
	// and is not called under its own name.
	Discovers bool
	// Binary is the absolute path of the program, for the kind Binary.
	Binary string
	// program is what was found of it.
	program *program
	// Interpreters are what runs each script, by the script's path. The scripts are
	// Binary, or for other kinds the programs in Def.Capabilities.Exec.
	Interpreters map[string][]process.Interpreter
	// User is the user that the tool's programs run as; nil is the user of this
	// process.
	User *process.UserID
	// Schema validates the payload; nil accepts any object. SchemaSource is the
	// schema as its author wrote it.
	Schema       *jsonschema.Schema
	SchemaSource json.RawMessage
	Description  string
	Annotations  *abi.Annotations
	// Config is the configuration of the guests: that of an Extism manifest,
	// overridden by that of tool.json.
	Config map[string]string
	// Wants is the additional context that the policies or the handler requested
	// in describe, such as abi.WantRepoConfig; sorted.
	Wants []string
}

// layers are the places that a policy can come from.
type layers struct {
	global bool // for all tools
	own    bool // the tool's own, or the fallback of its name
}

// without reports whether l lacks a layer that other has.
func (l layers) without(other layers) bool {
	return other.global && !l.global || other.own && !l.own
}

// module is the file of one module.
type module struct {
	place place
	file  string // for messages
	data  []byte
}

// candidate is a version of a tool as it was read from disk, before anything is
// compiled.
type candidate struct {
	name string
	// gone reports that there is no such tool; why is the reason, for the log.
	gone bool
	why  string
	// err is what is wrong with the files: TOOL_BROKEN.
	err error
	// present are the policies on disk, readable or not, in any language. legacy
	// reports that one of them is a script of an older tool server.
	present layers
	legacy  bool
	// globalNone reports that the operator confirmed that there is no policy for
	// all tools.
	globalNone bool

	def       *Definition
	defFile   string // for messages
	defData   []byte
	kind      Kind
	policies  []module
	handler   module
	manifest  *guest.Manifest
	setup     []byte
	setupPath string
	// gitConfig is the value of GIT_CONFIG_GLOBAL in the tool's calls, if setup.sh
	// wrote that file.
	gitConfig string
	binary    string
	programs  []*program
	dir       string
	digest    string
}

func broken(format string, args ...any) error {
	return fault.Errorf(fault.ToolBroken, format, args...)
}

// read returns the candidate that d holds. It reads and checks files; it compiles
// and runs nothing.
func (c *Catalog) read(d *disk, name string) *candidate {
	v := &candidate{name: name}
	folder := d.look(place{path: name})
	switch {
	case !folder.present():
		v.gone, v.why = true, "there is no such folder"
	case folder.fault != "":
		v.gone, v.why = true, "its folder "+folder.fault
	case !folder.mode.IsDir():
		v.gone, v.why = true, "it is not a folder but "+kindOf(folder.mode)
	}
	if v.gone {
		return v
	}
	in := func(file string) place { return place{path: path.Join(name, file)} }

	legacy := v.findPolicies(d, in)
	if !d.look(in(definitionFile)).present() && !d.look(in(handlerFile)).present() &&
		!slices.ContainsFunc([]string{policyFile, "restricted.sh", "restricted.py"}, func(f string) bool { return d.look(in(f)).present() }) {
		v.gone, v.why = true, fmt.Sprintf("its folder has no %s, %s or %s", definitionFile, handlerFile, policyFile)
		return v
	}
	v.err = func() error {
		if dir, err := filepath.EvalSymlinks(d.name(place{path: name})); err != nil {
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
		if !c.cfg.AllowWritable {
			return v.checkWritable(d)
		}
		return nil
	}()
	v.shareGitConfig()
	c.findPrograms(v)
	v.sum()
	return v
}

// findPrograms finds the binary, or the programs that a module may execute, with
// the interpreters of those that are scripts.
func (c *Catalog) findPrograms(v *candidate) {
	v.programs = nil
	if v.def == nil || v.err != nil {
		return
	}
	searchPath := BinaryPath
	if own := v.def.Environment["PATH"]; own != "" {
		searchPath = own
	}
	names := []string{v.binary}
	if v.kind != Binary {
		names = slices.DeleteFunc(slices.Clone(v.def.Capabilities.Exec), func(path string) bool {
			fi, err := os.Stat(path)
			return err == nil && fi.IsDir()
		})
	}
	for _, name := range names {
		p := findProgram(name, searchPath)
		if p.err == nil {
			p.err = c.guarded(p)
		}
		v.programs = append(v.programs, p)
	}
}

// guarded returns an error if a part of the script p could be replaced by a call, or
// by a user other than its owner.
func (c *Catalog) guarded(p *program) error {
	c.mu.Lock()
	roots := c.roots
	c.mu.Unlock()
	if file, root := p.exposed(roots); file != "" {
		return fmt.Errorf("is a script, and %s lies beneath the root %s, where a call could replace it; move it out of the roots", file, root)
	}
	for _, part := range p.parts {
		if !c.cfg.AllowWritable && writableByOthers(part.path, part.stamp.mode) {
			return fmt.Errorf(`is a script, and %s can be written by others than its owner (mode %04o); run chmod go-w on it, or say "allow_writable_tools": true in toold.json`, part.path, part.stamp.mode.Perm())
		}
	}
	return nil
}

// findPolicies records which policies are on disk and returns the name of one that
// is a script, if there is one.
func (v *candidate) findPolicies(d *disk, in func(string) place) (legacy string) {
	layer := func(places ...place) (found bool) {
		for _, p := range places {
			if !d.look(p).present() {
				continue
			}
			found = true
			if legacy == "" && path.Ext(p.path) != ".wasm" {
				legacy = d.name(p)
			}
		}
		return found
	}
	all := func(base string) []place {
		return []place{{true, base + ".wasm"}, {true, base + ".sh"}, {true, base + ".py"}}
	}
	v.present.global = layer(all("_all")...)
	v.globalNone = d.look(place{true, globalNone}).present()
	own := layer(in(policyFile), in("restricted.sh"), in("restricted.py"))
	fallback := layer(all(v.name)...)
	v.present.own = own || fallback
	return legacy
}

func (v *candidate) readDefinition(d *disk, in func(string) place) error {
	p := in(definitionFile)
	v.def, v.defFile = DefaultDefinition(), d.name(p)
	if d.look(p).present() {
		data, err := d.read(p, MaxDefinition)
		if err != nil {
			return broken("read the definition of tool %s: %s %w; replace the file", v.name, d.name(p), err)
		}
		if v.def, err = ParseDefinition(d.name(p), data); err != nil {
			return broken("read the definition of tool %s: %w; docs/tools.md describes each field", v.name, err)
		}
		v.defData = data
	}
	def := v.def
	switch {
	case def.Binary != "":
		v.kind, v.binary = Binary, def.Binary
	case def.Handler != "":
		v.kind, v.handler.place = Handler, in(def.Handler)
	case def.WASI != "":
		v.kind, v.handler.place = WASI, in(def.WASI)
	case d.look(in(handlerFile)).present():
		v.kind, v.handler.place = Handler, in(handlerFile)
	default:
		v.kind, v.binary = Binary, v.name
		if def.Entry != nil {
			return broken("tool %s has an entry in %s but no handler: name the module in handler, or call it %s", v.name, d.name(p), handlerFile)
		}
	}
	return nil
}

// readModules reads every module, the manifest and setup.sh.
func (v *candidate) readModules(d *disk, in func(string) place) error {
	policy := func(p place) error {
		m, err := v.readModule(d, p)
		if err != nil {
			return broken("load the policy of tool %s: %s %w; every call is refused until it loads: put a module there", v.name, d.name(p), err)
		}
		v.policies = append(v.policies, m)
		return nil
	}
	if p := (place{true, globalPolicy}); d.look(p).present() {
		if err := policy(p); err != nil {
			return err
		}
	}
	if p := in(policyFile); d.look(p).present() {
		if v.def.Policy == PolicyNone {
			return broken("tool %s says \"policy\": \"none\" and has %s; remove one of them", v.name, d.name(p))
		}
		if err := policy(p); err != nil {
			return err
		}
	} else if p := (place{true, v.name + ".wasm"}); d.look(p).present() {
		if err := policy(p); err != nil {
			return err
		}
	}

	if v.kind != Binary {
		if err := v.readHandler(d); err != nil {
			return err
		}
	}
	if p := in(setupFile); d.look(p).present() {
		var err error
		if v.setup, err = d.read(p, maxSetup); err != nil {
			return broken("set up tool %s: %s %w; replace it, or remove it if there is nothing to set up", v.name, d.name(p), err)
		}
		v.setupPath = d.name(p)
		d.look(in(gitConfig))
	}
	return v.checkUse(v.kind)
}

// checkUse refuses a definition that asks for what a tool of kind cannot use.
func (v *candidate) checkUse(kind Kind) error {
	if err := checkUse(v.defFile, v.defData, v.def, kind, v.setup != nil); err != nil {
		return broken("read the definition of tool %s: %w", v.name, err)
	}
	return nil
}

func (v *candidate) readModule(d *disk, p place) (module, error) {
	data, err := d.read(p, maxModule)
	if err == nil && len(data) == 0 {
		err = errors.New("is empty")
	}
	return module{place: p, file: d.name(p), data: data}, err
}

func (v *candidate) readHandler(d *disk) error {
	p := v.handler.place
	fail := func(p place, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return broken("load tool %s: %s does not exist; put the module there, or name another in %s", v.name, d.name(p), definitionFile)
		}
		return broken("load tool %s: %s %w; replace it", v.name, d.name(p), err)
	}
	if path.Ext(p.path) != ".json" {
		m, err := v.readModule(d, p)
		if err != nil {
			return fail(p, err)
		}
		v.handler = m
		return nil
	}
	data, err := d.read(p, MaxDefinition)
	if err != nil {
		return fail(p, err)
	}
	m, err := guest.ReadManifest(data)
	if err != nil {
		return fail(p, err)
	}
	v.manifest = m
	v.handler = module{place: p, file: d.name(p), data: m.Data}
	if m.Path != "" {
		if !filepath.IsLocal(m.Path) || path.Ext(m.Path) != ".wasm" {
			return fail(p, fmt.Errorf("names the module %q, which is not a .wasm file beneath the tool's folder; put it there", m.Path))
		}
		file := place{path: path.Join(v.name, path.Clean(m.Path))}
		if v.handler, err = v.readModule(d, file); err != nil {
			return fail(file, err)
		}
	}
	if sum := sha256.Sum256(v.handler.data); m.Hash != "" && m.Hash != hex.EncodeToString(sum[:]) {
		return broken("load tool %s: %s has the sha256 %x, and %s says %s; restore the module, or write the new sum if the change is meant", v.name, v.handler.file, sum, d.name(p), m.Hash)
	}
	return v.applyManifest(d.name(p))
}

// applyManifest takes from the manifest what tool.json does not set, so that a stock
// Extism plugin is a tool without changes.
func (v *candidate) applyManifest(file string) error {
	m, def := v.manifest, v.def
	says := func(pointer string) bool { return v.defData != nil && has(v.defData, pointer) }
	if m.MemoryBytes > 0 && !says("/limits/memory") {
		def.Limits.Memory = min(Size(m.MemoryBytes), maxMemory)
	}
	if m.Timeout > 0 && !says("/timeout") {
		def.Timeout = min(Seconds(m.Timeout.Seconds()), maxTimeout)
	}
	if len(m.AllowedHosts) > 0 && !says("/capabilities/http") {
		for _, h := range m.AllowedHosts {
			if !validHost(h, true) {
				return broken(`load tool %s: %s allows the host %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, v.name, file, h)
			}
		}
		def.Capabilities.HTTP = &HTTP{Hosts: m.AllowedHosts, Methods: []string{"*"}}
	}
	if len(m.AllowedPaths) > 0 && !says("/capabilities/files") {
		def.Capabilities.Files = map[string]File{}
		for host, guestPath := range m.AllowedPaths {
			mode := "rw"
			if h, ok := strings.CutPrefix(host, "ro:"); ok {
				host, mode = h, "ro"
			}
			if !path.IsAbs(host) || !path.IsAbs(guestPath) {
				return broken("load tool %s: %s maps %q to %q in allowed_paths; both must be absolute paths", v.name, file, host, guestPath)
			}
			def.Capabilities.Files[path.Clean(guestPath)] = File{Path: path.Clean(host), Mode: mode}
		}
	}
	if m.StateBytes > 0 && !says("/capabilities/state") {
		def.Capabilities.State = min(Size(m.StateBytes), maxState)
	}
	config := maps.Clone(m.Config)
	if config == nil {
		config = map[string]string{}
	}
	maps.Copy(config, def.Config)
	def.Config = config
	return nil
}

// checkHashes compares the files that were read with the pinned hashes.
func (v *candidate) checkHashes(d *disk, in func(string) place) error {
	for _, name := range sortedKeys(v.def.Hash) {
		var data []byte
		p := in(path.Clean(name))
		switch {
		case v.kind != Binary && p == v.handler.place:
			data = v.handler.data
		case p == in(setupFile):
			data = v.setup
		case slices.ContainsFunc(v.policies, func(m module) bool { return m.place == p }):
			i := slices.IndexFunc(v.policies, func(m module) bool { return m.place == p })
			data = v.policies[i].data
		case p == in(policyFile):
		default:
			return broken("tool %s pins the hash of %s, which is no part of it; name restricted.wasm, setup.sh or the module that it runs", v.name, name)
		}
		if data == nil {
			return broken("tool %s pins the hash of %s, which does not exist; restore the file, or take the pin out of %s", v.name, d.name(p), definitionFile)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != v.def.Hash[name] {
			return broken("%s has the sha256 %x, and tool.json pins %s; restore the file, or pin the new sum if the change is meant", d.name(p), sum, v.def.Hash[name])
		}
	}
	return nil
}

// checkWritable refuses a tool if users other than the owner can write any part of
// it: a policy does not bind those who can change it.
func (v *candidate) checkWritable(d *disk) error {
	byName := func(a, b place) int { return strings.Compare(d.name(a), d.name(b)) }
	for _, p := range slices.SortedFunc(maps.Keys(d.seen), byName) {
		if s := d.seen[p]; s.fault == "" && writableByOthers(d.name(p), s.mode) {
			return broken(`%s can be written by others than its owner (mode %04o); run chmod go-w on it, or say "allow_writable_tools": true in toold.json`, d.name(p), s.mode.Perm())
		}
	}
	return nil
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
	add("definition", v.defData)
	add("kind "+string(v.kind), []byte(v.binary))
	for _, m := range v.policies {
		add("policy "+m.place.path, m.data)
	}
	add("handler "+v.handler.place.path, v.handler.data)
	if v.manifest != nil {
		add("manifest", v.manifest.Source)
	}
	add("setup", v.setup)
	add("git configuration", []byte(v.gitConfig))
	for _, p := range v.programs {
		if p.digest != "" {
			add("program "+p.file, []byte(p.digest))
		}
		if p.err != nil {
			add("program error", []byte(p.err.Error()))
		}
	}
	if v.err != nil {
		add("error", []byte(v.err.Error()))
	}
	v.digest = hex.EncodeToString(h.Sum(nil))
}

// compile compiles the modules of a candidate and returns a generation. It leaves
// nothing open on an error.
func (c *Catalog) compile(ctx context.Context, v *candidate) (_ *generation, err error) {
	if v.err != nil {
		return nil, v.err
	}
	def := v.def
	g := &generation{has: v.present, digest: v.digest, tool: Tool{
		Name: v.name, Version: v.digest[:32], Kind: v.kind, Def: def, Dir: v.dir,
		Description: def.Description, Annotations: def.Annotations,
		SchemaSource: def.Schema, Config: def.Config,
	}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	t := &g.tool
	if err := c.checkRoots(v); err != nil {
		return nil, err
	}
	if err := c.findUser(v, t); err != nil {
		return nil, err
	}
	for _, p := range v.policies {
		m, err := c.loadPolicy(ctx, v, p)
		if err != nil {
			return nil, err
		}
		t.Policies = append(t.Policies, m)
		t.PolicyFiles = append(t.PolicyFiles, p.file)
		sum := sha256.Sum256(p.data)
		t.PolicyDigests = append(t.PolicyDigests, hex.EncodeToString(sum[:]))
		d, err := describe(ctx, m, p.file)
		if err != nil {
			return nil, err
		}
		t.Wants = append(t.Wants, d.Wants...)
	}
	if v.kind != Binary {
		if err := c.loadHandler(ctx, v, t); err != nil {
			return nil, err
		}
	}
	slices.Sort(t.Wants)
	t.Wants = slices.Compact(t.Wants)
	if t.SchemaSource != nil {
		if t.Schema, err = CompileSchema(t.SchemaSource); err != nil {
			return nil, broken("the schema of tool %s %w", v.name, err)
		}
	}
	if err := c.runSetup(ctx, v); err != nil {
		return nil, err
	}
	if v.setup != nil {
		v.shareGitConfig()
		c.findPrograms(v) // setup.sh may have installed them
		v.sum()
		g.digest, t.Version = v.digest, v.digest[:32]
	}
	for _, p := range v.programs {
		if v.kind == Binary {
			if p.err != nil && !p.missing {
				return nil, broken("tool %s cannot start: %s %w", v.name, p.file, p.err)
			}
			// If it is missing now, it may be installed before the first call.
			t.Binary, t.program = p.file, p
		}
		if len(p.interpreters) > 0 && p.err == nil {
			if t.Interpreters == nil {
				t.Interpreters = map[string][]process.Interpreter{}
			}
			t.Interpreters[p.file] = p.interpreters
		}
	}
	return g, nil
}

// findUser sets the user that the tool's programs run as.
func (c *Catalog) findUser(v *candidate, t *Tool) (err error) {
	if v.def.User == "" {
		return nil
	}
	if t.User, err = process.LookUpUser(v.def.User); err != nil {
		return broken("tool %s: user %v", v.name, err)
	}
	reason := "nothing runs binaries here"
	if c.cfg.Runner != nil {
		s := c.cfg.Runner.Confinement()
		if s.Users {
			return nil
		}
		reason = s.UsersReason
	}
	return broken("tool %s is to run as user %s: %s; or take user out of %s", v.name, v.def.User, reason, definitionFile)
}

// checkRoots refuses roots of a tool that lie outside of the host's.
func (c *Catalog) checkRoots(v *candidate) error {
	c.mu.Lock()
	roots := c.roots
	c.mu.Unlock()
	if len(roots) == 0 {
		return nil
	}
	for _, r := range v.def.Roots {
		if real, err := filepath.EvalSymlinks(r); err == nil {
			r = real // the host's roots are resolved as well
		}
		if !slices.ContainsFunc(roots, func(host string) bool { return process.Beneath(filepath.Clean(host), r) }) {
			return broken("tool %s narrows its roots to %s, which is beneath none of this host's (%s); name a folder beneath one of them, or start toold with --root %s", v.name, r, strings.Join(roots, ", "), r)
		}
	}
	return nil
}

// loadPolicy loads a policy. It gets the default limits and not those of the tool,
// since restricting a tool must not break its policy.
func (c *Catalog) loadPolicy(ctx context.Context, v *candidate, p module) (*guest.Module, error) {
	std := DefaultDefinition().Limits
	name := v.name + "/" + path.Base(p.place.path)
	m, err := c.cfg.Engine.Load(ctx, guest.Spec{
		Name: name, Wasm: p.data,
		Memory: int64(std.Memory), Fuel: std.Fuel, Output: int64(std.Output),
		Grants: v.def.Capabilities.Grants() & guest.GrantState,
		Config: v.def.Config, Concurrency: v.def.Limits.Concurrency,
	})
	if err != nil {
		return nil, loadError(p.file, err)
	}
	if !m.Has("restrict") {
		m.Close()
		return nil, broken("%s exports no restrict, so it is no policy; every call is refused until one loads: put a policy there", p.file)
	}
	return m, nil
}

func (c *Catalog) loadHandler(ctx context.Context, v *candidate, t *Tool) error {
	def, k := v.def, &v.def.Capabilities
	spec := guest.Spec{
		Name: v.name + "/" + path.Base(v.handler.place.path), Wasm: v.handler.data,
		Memory: int64(def.Limits.Memory), Fuel: def.Limits.Fuel, Output: int64(def.Limits.Output),
		Grants: k.Grants(),
		Config: def.Config, Concurrency: def.Limits.Concurrency,
	}
	for _, at := range sortedKeys(k.Files) {
		spec.Files = append(spec.Files, guest.Mount{Guest: at, Host: k.Files[at].Path, ReadOnly: k.Files[at].Mode != "rw"})
	}
	m, err := c.cfg.Engine.Load(ctx, spec)
	if err != nil {
		return loadError(v.handler.file, err)
	}
	sum := sha256.Sum256(v.handler.data)
	t.Handler, t.HandlerFile, t.HandlerDigest = m, v.handler.file, hex.EncodeToString(sum[:])
	if v.kind == WASI {
		if !m.Has("_start") {
			return broken("%s exports no _start, so it is no WASI command; name it in handler if it is an Extism module", t.HandlerFile)
		}
		return nil
	}
	switch {
	case def.Entry != nil && !m.Has(def.Entry.Export):
		return broken("%s has no export %q, which tool.json names in entry; name one that it has", t.HandlerFile, def.Entry.Export)
	case def.Entry != nil:
		t.Entry = def.Entry
	case m.Has("handle"):
		t.Entry = &Entry{Export: "handle", Input: EntryCall, Output: EntryResult}
	case m.Has("_start"):
		t.Kind = WASI
		return v.checkUse(WASI)
	default:
		return broken(`%s exports neither handle nor _start; say in tool.json which export is the tool: "entry": {"export": NAME}`, t.HandlerFile)
	}
	t.Discovers = m.Has("discover") && t.Entry.Export == "handle"
	d, err := describe(ctx, m, t.HandlerFile)
	if err != nil {
		return err
	}
	t.Wants = append(t.Wants, d.Wants...)
	if t.Description == "" {
		t.Description = d.Description
	}
	if t.Annotations == nil {
		t.Annotations = d.Annotations
	}
	if t.SchemaSource == nil && d.Schema != nil {
		t.SchemaSource = d.Schema
	}
	return nil
}

// loadError replaces the short name of a module in an error of the engine with its
// file name.
func loadError(file string, err error) error {
	if e, ok := errors.AsType[*guest.Error](err); ok {
		unnamed := *e
		unnamed.Module = ""
		err = Explain(&unnamed)
	}
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return broken("load %s: %w", file, err)
	}
	return &fault.Error{Code: e.Code, Message: "load " + file + ": " + e.Message, Cause: err}
}

// describe calls the optional export describe. It is called once for each version.
func describe(ctx context.Context, m *guest.Module, file string) (d abi.Describe, err error) {
	if !m.Has("describe") {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	reply, err := m.Call(ctx, guest.Invocation{Export: "describe"})
	if err != nil {
		return d, broken("%s: describe fails: %w; fix it, or remove the export", file, Explain(err))
	}
	if err := strictjson.Unmarshal(reply.Output, &d); err != nil {
		return d, broken("%s: describe returned an invalid description: %w; build the module with a current SDK", file, err)
	}
	if d.ABI > abi.Version {
		return d, broken("%s is written for version %d of the guest interface, and this toold supports %d; use a newer toold, or a module built for %d", file, d.ABI, abi.Version, abi.Version)
	}
	if d.ABI < 1 {
		return d, broken("%s: describe answers abi %d; the first version is 1", file, d.ABI)
	}
	for _, w := range d.Wants {
		if w != abi.WantRepoConfig {
			return d, broken("%s wants %q in its calls, which this toold does not know; use a newer toold", file, w)
		}
	}
	return d, nil
}

// lookBinary resolves the binary of a definition. ok reports whether it exists and is
// executable.
func lookBinary(name string) (file string, ok bool) {
	if path.IsAbs(name) {
		return name, executable(name)
	}
	for _, dir := range filepath.SplitList(BinaryPath) {
		if file := filepath.Join(dir, name); executable(file) {
			return file, true
		}
	}
	return "", false
}

func executable(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}
