// Package guest runs WebAssembly modules that nobody trusts.
//
// A Module is loaded once, with its limits and what it may reach, and called
// many times, from any number of goroutines. Every call begins with the state
// that the module had when it had just been initialised: nothing that one call
// leaves behind (memory, globals, tables, descriptors, the kernel's blocks) is
// seen by another, however the call ended. What is meant to last goes through
// VarGet and VarSet, which the caller owns.
//
// A call ends when its context does, whatever the guest is doing, and when it
// has used up one of its limits. It answers bytes, or an error of a known
// kind (see Module.Call). A guest reaches nothing but the functions that
// Services and its Grants give it: no files but Spec.Files, no network, no
// environment. Clocks are real, and so is randomness but while a module
// initialises itself: then it is the same each time on this host.
//
// Guests speak the Extism ABI, so that a plugin made with any of its SDKs
// runs; a module with "_start" and nothing else is a WASI command, for
// Module.Run.
//
// The package does not decide what a tool may do, and knows nothing of tools,
// sockets or identities beyond an opaque name. No other package imports
// wazero.
package guest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/tetratelabs/wazero"

	"github.com/toold/toold/host/guest/wasip2"
)

// Config is fixed once an Engine is made.
type Config struct {
	// CacheDir keeps compiled code from one run to the next. It is made when
	// missing, with mode 0700: what is in it is run as it is, so nobody else
	// may write there. Empty: code is kept in memory only.
	CacheDir string
	// Compiler is a program that compiles modules in a process of its own:
	// "/proc/self/exe" for one that asks IsCompiler first thing. Empty:
	// modules are compiled in this process, which a hostile one can stop for
	// as long as it likes.
	Compiler string
	// Memory bounds the bytes that all instances hold together: their
	// memories, stacks, tables, and what they exchange with the host.
	// Default: 1 GiB.
	Memory int64
	// Awake is how many modules are kept ready to be called, beside those that are
	// being called; others have to be loaded again when they are. Default: 64.
	Awake int
	// Logger hears of what is no caller's business. Default: slog.Default.
	Logger *slog.Logger
}

// Engine compiles modules and holds what they share.
type Engine struct {
	cfg      Config
	dir      string // of compiled code
	own      bool   // dir goes with the Engine
	cache    wazero.CompilationCache
	funcs    []hostFunc
	wasip2   []wasip2.Func
	strategy strategy
	memory   account
	started  time.Time
	seed     [32]byte // of what guests draw while they initialise themselves

	// slots and first are held while a module is compiled; first is for those
	// with Spec.First alone.
	slots, first chan struct{}

	stackOnce   sync.Once
	stackFields *stackFields // of wazero's functions; set by stackOnce
	stackErr    error        // set by stackOnce

	turns  *turns // who computes
	spared spared

	// loading is held while wazero takes code into memory: its cache does
	// not bear two at a time. mu may be taken under it, never the other way
	// round.
	loading sync.Mutex

	mu      sync.Mutex
	builds  map[buildKey]*build                    // guarded by mu
	modules map[*Module]struct{}                   // those that are loaded; guarded by mu
	exports map[[32]byte]weak.Pointer[exportTable] // by digest; guarded by mu
	home    *home                                  // where the next is loaded; nil: in a new one; guarded by mu

	closing context.Context // ends what is being compiled
	stop    context.CancelFunc
}

// New makes an Engine. It fails when the cache folder cannot be used.
func New(cfg Config) (*Engine, error) {
	if os.Getenv(compilingVariable) != "" {
		return nil, errors.New("this process was started to compile a module; main must call guest.IsCompiler before anything else")
	}
	if cfg.Memory == 0 {
		cfg.Memory = 1 << 30
	}
	if cfg.Awake == 0 {
		cfg.Awake = 64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	e := &Engine{
		cfg: cfg, dir: cfg.CacheDir, funcs: append(hostFuncs(), wasiFuncs()...), wasip2: wasip2.Table(), started: time.Now(),
		slots: make(chan struct{}, compileAtOnce), first: make(chan struct{}, compileFirst), builds: map[buildKey]*build{}, modules: map[*Module]struct{}{},
		exports: map[[32]byte]weak.Pointer[exportTable]{},
	}
	e.closing, e.stop = context.WithCancel(context.Background())
	e.turns = newTurns(runtime.GOMAXPROCS(0))
	e.memory.limit = cfg.Memory
	var err error
	if e.strategy, err = chooseStrategy(); err != nil {
		return nil, err
	}
	if e.dir == "" {
		if e.dir, err = os.MkdirTemp("", "toold-wasm-"); err != nil {
			return nil, err
		}
		e.own = true
	}
	if err := e.openCache(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) openCache() error {
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return err
	}
	st, err := os.Stat(e.dir)
	if err != nil {
		return err
	}
	if st.Mode().Perm()&0o022 != 0 {
		return errors.New("use cache folder " + e.dir + ": others may write there; chmod 0700 it, or name another")
	}
	// What a process left behind that was killed while it compiled.
	old, _ := filepath.Glob(filepath.Join(e.dir, "build-*"))
	seeds, _ := filepath.Glob(filepath.Join(e.dir, seedFile+"-*"))
	old = append(old, seeds...)
	for _, d := range old {
		if st, err := os.Stat(d); err == nil && time.Since(st.ModTime()) > time.Hour {
			os.RemoveAll(d)
		}
	}
	e.prune()
	if e.seed, err = loadSeed(e.dir, e.cfg.Logger); err != nil {
		return err
	}
	e.cache, err = wazero.NewCompilationCacheWithDir(e.dir)
	return err
}

// Close gives back what the Engine holds. Its modules must be closed first. What is
// being compiled is given up: who ends a daemon, or waits for the next one to take its
// place, does not wait for that.
func (e *Engine) Close() error {
	e.stop()
	for {
		var b *build
		e.mu.Lock()
		for _, b = range e.builds {
			break
		}
		e.mu.Unlock()
		if b == nil {
			break
		}
		<-b.done
	}
	e.spared.stop()
	var err error
	if e.home != nil {
		err = e.home.close()
	}
	if e.cache != nil {
		err = errors.Join(err, e.cache.Close(context.Background()))
	}
	if e.own {
		err = errors.Join(err, os.RemoveAll(e.dir))
	}
	return err
}

// Restoring names the way in which calls come to fresh state: "count",
// "scan", "pagemap", "image" or "fresh".
func (e *Engine) Restoring() string { return e.strategy.String() }

// Spec is a module and what it gets. It is not changed after Load.
type Spec struct {
	// Name is how messages call the module: "git/restricted.wasm".
	Name string
	Wasm []byte
	// Linked are modules that Wasm, or one another, imports functions from.
	Linked []Linked
	// Memory is how many bytes a call's memory and its stack may reach
	// together, the first 256 KiB of stack not counted; and how many it may
	// exchange with the host. Default: 64 MiB.
	Memory int64
	// Compile is what compiling the module may take.
	Compile CompileLimits
	// Fuel is how many metered instructions a call may take. Default:
	// 20,000,000,000.
	Fuel int64
	// First has the module compiled before all others: it waits for none of
	// them.
	First bool
	// Stock lets the module be a plugin that was made for another Extism host:
	// one that neither exports "handle" or "restrict" nor imports what only this
	// host has. What such a module imports and may not have, or nobody here has,
	// fails the call that calls it instead of the load (see Module.Missing), and
	// so does a request over HTTP that fails.
	Stock bool
	// Output is how many bytes a call may answer. Default: 16 MiB.
	Output int64
	Grants Grants
	// Config is what config_get answers when the Invocation has none.
	Config map[string]string
	// Concurrency is how many calls are likely at a time; more are served,
	// at a higher price. Default: 32.
	Concurrency int
	// Files are the folders that the module sees.
	Files []Mount
}

// CompileLimits bound a module before any of it runs. What is 0 follows from how
// much code and data there is.
type CompileLimits struct {
	// Time is of one core; the clock may show six times as much, for what else the
	// machine does.
	Time   time.Duration
	Memory int64
	// Module is how many bytes of code and data a module may have. Debug sections
	// and others that are not run do not count. Default: 64 MiB.
	Module int64
}

// Grants are the functions that a module may import beyond those that every
// module has. The table of functions says which need which (see functions.go).
type Grants uint8

const (
	GrantState Grants = 1 << iota
	GrantHTTP
	GrantExec
	GrantToolCall
	endOfGrants
	AllGrants = endOfGrants - 1
)

// grantNames are in the order of the constants.
var grantNames = []string{"state", "http", "exec", "tool_call"}

// String lists the names of the grants: "state, http".
func (g Grants) String() string {
	var names []string
	for i, name := range grantNames {
		if g&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Mount is a folder of the host that a guest sees.
type Mount struct {
	Guest    string // an absolute path
	Host     string
	ReadOnly bool
}

const (
	wasmPage      = 64 << 10
	osPage        = 4 << 10
	maxFile       = 256 << 20          // bytes of a .wasm file
	defaultModule = 64 << 20           // of it, code and data
	maxMemory     = 4<<30 - 2*wasmPage // bytes: 32 bits of address, and a page to shrink by
	defaultMemory = 64 << 20
	defaultFuel   = 20_000_000_000
	defaultOutput = 16 << 20
)

func (s *Spec) defaults() {
	if s.Memory == 0 {
		s.Memory = defaultMemory
	}
	if s.Fuel == 0 {
		s.Fuel = defaultFuel
	}
	if s.Compile.Module == 0 {
		s.Compile.Module = defaultModule
	}
	if s.Output == 0 {
		s.Output = defaultOutput
	}
	if s.Concurrency == 0 {
		s.Concurrency = 32
	}
}
