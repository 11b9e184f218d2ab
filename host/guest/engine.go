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
// environment. Clocks and randomness are real.
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
	"sync"

	"github.com/tetratelabs/wazero"

	"github.com/toold/toold/host/wire"
)

// Config is fixed once an Engine is made.
type Config struct {
	// CacheDir keeps compiled code from one run to the next. It is made when
	// missing, with mode 0700: what is in it is run as it is, so nobody else
	// may write there. Empty: code is kept in memory only.
	CacheDir string
	// Memory bounds the bytes that all instances hold together. Default:
	// 1 GiB.
	Memory int64
	// Logger hears of what is no caller's business. Default: slog.Default.
	Logger *slog.Logger
}

// Engine compiles modules and holds what they share.
type Engine struct {
	cfg   Config
	cache wazero.CompilationCache
	funcs []hostFunc

	// compile is held while a module is compiled or loaded: wazero's cache
	// does not bear two at a time.
	compile sync.Mutex
}

// New makes an Engine. It fails when the cache folder cannot be used.
func New(cfg Config) (*Engine, error) {
	if cfg.Memory == 0 {
		cfg.Memory = 1 << 30
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	e := &Engine{cfg: cfg, funcs: hostFuncs()}
	if cfg.CacheDir == "" {
		e.cache = wazero.NewCompilationCache()
		return e, nil
	}
	if err := os.MkdirAll(cfg.CacheDir, 0o700); err != nil {
		return nil, err
	}
	st, err := os.Stat(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o022 != 0 {
		return nil, errors.New("use cache folder " + cfg.CacheDir + ": others may write there; chmod 0700 it, or name another")
	}
	e.cache, err = wazero.NewCompilationCacheWithDir(cfg.CacheDir)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Close gives back what the Engine holds. Its modules must be closed first.
func (e *Engine) Close() error { return e.cache.Close(context.Background()) }

// Spec is a module and what it gets. It is not changed after Load.
type Spec struct {
	// Name is how messages call the module: "git/restricted.wasm".
	Name string
	Wasm []byte
	// Memory is how many bytes a call's memory may reach. Default: 64 MiB.
	Memory int64
	// Fuel is how many metered instructions a call may take. Default:
	// 1,000,000,000.
	Fuel int64
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

// Grants are the functions a module may import beyond those that every module
// has.
type Grants struct {
	Exec     bool // tool_exec
	HTTP     bool // http_request and what belongs to it
	State    bool // var_get, var_set
	ToolCall bool // tool_call
}

// Mount is a folder of the host that a guest sees.
type Mount struct {
	Guest    string // an absolute path
	Host     string
	ReadOnly bool
}

const (
	wasmPage      = 64 << 10
	maxModule     = 64 << 20 // bytes of a .wasm file
	defaultMemory = 64 << 20
	defaultFuel   = 1_000_000_000
	defaultOutput = 16 << 20
)

func (s *Spec) defaults() {
	if s.Memory == 0 {
		s.Memory = defaultMemory
	}
	if s.Fuel == 0 {
		s.Fuel = defaultFuel
	}
	if s.Output == 0 {
		s.Output = defaultOutput
	}
	if s.Concurrency == 0 {
		s.Concurrency = 32
	}
}

func broken(name, format string, args ...any) *wire.Error {
	return wire.Errorf(wire.ToolBroken, name+": "+format, args...)
}
