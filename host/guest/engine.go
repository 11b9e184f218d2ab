// Package guest runs untrusted WebAssembly modules.
//
// A Module is loaded once, with its limits and the resources it may reach, and called
// many times, from any number of goroutines. Every call starts with the state that the
// module had after initialization: nothing that one call leaves behind (memory,
// globals, tables, descriptors, the kernel's blocks) is visible to another, however the
// call ended. Persistent state goes through VarGet and VarSet, which the caller
// implements.
//
// A call ends when its context ends, whatever the guest is doing, and when it exceeds
// one of its limits. It returns bytes, or an error of a known kind (see Module.Call). A
// guest reaches only the functions that Services and its Grants give it: no files
// except Spec.Files, no network, no environment. Clocks are real. So is randomness,
// except while a module initializes: then it is the same each time on this host.
//
// Guests use the Extism ABI, so plugins built with any of its SDKs run; a module with
// "_start" and nothing else is a WASI command, for Module.Run.
//
// The package does not decide what a tool may do, and has no notion of tools, sockets
// or identities beyond an opaque name. No other package imports wazero.
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

// Config is fixed once an Engine is created.
type Config struct {
	// CacheDir keeps compiled code between runs. It is created if missing, with mode
	// 0700: its content is executed as it is, so nobody else may write there. If empty,
	// code is kept in memory only.
	CacheDir string
	// Compiler is a program that compiles modules in a separate process:
	// "/proc/self/exe" for a program that checks IsCompiler first. If empty, modules
	// are compiled in this process, which a hostile module can block for as long as it
	// likes.
	Compiler string
	// Memory limits the total bytes of all instances: their memories, stacks, tables,
	// and what they exchange with the host. Default: 1 GiB.
	Memory int64
	// Awake is the number of modules kept ready to be called, in addition to those
	// being called; others must be loaded again when called. Default: 64.
	Awake int
	// Logger receives messages that concern no particular caller. Default:
	// slog.Default.
	Logger *slog.Logger
}

// Engine compiles modules and holds the state they share.
type Engine struct {
	cfg      Config
	dir      string // of compiled code
	own      bool   // dir is removed with the Engine
	cache    wazero.CompilationCache
	funcs    []hostFunc
	wasip2   []wasip2.Func
	strategy strategy
	memory   account
	started  time.Time
	seed     [32]byte // of the randomness that guests draw during initialization

	// slots and first are held while a module is compiled; first is reserved for
	// modules with Spec.First.
	slots, first chan struct{}

	stackOnce   sync.Once
	stackFields *stackFields // of wazero's functions; set by stackOnce
	stackErr    error        // set by stackOnce

	turns  *turns // schedules computing calls
	spared spared

	// loading is held while wazero loads code into memory, since its cache is not safe
	// for concurrent use. Lock order: loading before mu.
	loading sync.Mutex

	mu      sync.Mutex
	builds  map[buildKey]*build                    // guarded by mu
	modules map[*Module]struct{}                   // loaded modules; guarded by mu
	exports map[[32]byte]weak.Pointer[exportTable] // by digest; guarded by mu
	home    *home                                  // for the next module; nil: a new one is needed; guarded by mu

	closing context.Context // cancels compilations
	stop    context.CancelFunc
}

// New creates an Engine. It fails if the cache folder cannot be used.
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
	// Left behind by a process that was killed while compiling.
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

// Close releases everything that the Engine holds. Its modules must be closed first.
// Compilations in progress are canceled: shutting down a daemon, or replacing it, must
// not wait for them.
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

// Restoring returns the strategy for restoring fresh state: "count", "scan", "pagemap",
// "image" or "fresh".
func (e *Engine) Restoring() string { return e.strategy.String() }

// Spec describes a module, its limits and its access. It must not be changed after
// Load.
type Spec struct {
	// Name is the module's name in messages: "git/restricted.wasm".
	Name string
	Wasm []byte
	// Linked are modules from which Wasm, or one another, imports functions.
	Linked []Linked
	// Memory limits, in bytes, a call's memory and stack together, not counting the
	// first 256 KiB of stack; and separately what it exchanges with the host. Default:
	// 64 MiB.
	Memory int64
	// Compile limits compilation of the module.
	Compile CompileLimits
	// Fuel limits the metered instructions of a call. Default: 20,000,000,000.
	Fuel int64
	// First compiles the module before all others: it waits for none of them.
	First bool
	// Stock allows the module to be a plugin built for another Extism host: one that
	// neither exports "handle" or "restrict" nor imports anything that only this host
	// provides. If such a module imports a function that is not granted or does not
	// exist here, the call that uses it fails instead of the load (see Module.Missing).
	// A failed HTTP request also fails its call.
	Stock bool
	// Output limits the bytes that a call may return. Default: 16 MiB.
	Output int64
	Grants Grants
	// Config holds the values that config_get returns if the Invocation has none.
	Config map[string]string
	// Concurrency is the expected number of concurrent calls; more are served, but more
	// slowly. Default: 32.
	Concurrency int
	// Files are the folders visible to the module.
	Files []Mount
}

// CompileLimits limit a module before any of it runs. A zero field is derived from the
// size of its code and data.
type CompileLimits struct {
	// Time is CPU time; the wall-clock limit is six times as much, to allow for other
	// load on the machine.
	Time   time.Duration
	Memory int64
	// Module limits the bytes of code and data. Debug sections and others that are not
	// executed do not count. Default: 64 MiB.
	Module int64
}

// Grants are the functions that a module may import beyond those that every module has.
// See functions.go for the grant that each function needs.
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

// String returns the names of the grants: "state, http".
func (g Grants) String() string {
	var names []string
	for i, name := range grantNames {
		if g&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Mount is a folder of the host made visible to a guest.
type Mount struct {
	Guest    string // an absolute path
	Host     string
	ReadOnly bool
}

const (
	wasmPage      = 64 << 10
	osPage        = 4 << 10
	maxFile       = 256 << 20          // bytes of a .wasm file
	defaultModule = 64 << 20           // bytes of its code and data
	maxMemory     = 4<<30 - 2*wasmPage // bytes: 32-bit addresses, less a page to shrink by
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
