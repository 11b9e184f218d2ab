package guest

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/host/wire"
)

// instance is one running copy of a module.
type instance struct {
	m      *Module
	mod    api.Module
	c      call
	stderr head

	closeDirs func()
}

// start makes the instance and initialises it, as the call that it holds.
func (in *instance) start() error {
	config, closeDirs, err := mount(in.config(), in.m.spec.Name, in.m.spec.Files)
	in.closeDirs = closeDirs
	if err != nil {
		return err
	}
	mod, err := in.m.runtime.InstantiateModule(&in.c, in.m.compiled, config)
	if err != nil {
		return in.initFailed("start", err)
	}
	in.mod = mod
	return in.initialize()
}

// config is what every instance gets. Clocks and randomness are real: what
// wazero gives by default is the same in every process.
func (in *instance) config() wazero.ModuleConfig {
	return wazero.NewModuleConfig().
		WithName("").
		WithStartFunctions().
		WithSysWalltime().
		WithSysNanotime().
		WithRandSource(rand.Reader).
		WithNanosleep(in.sleep).
		WithStderr(&in.stderr)
}

// sleep ends with the call.
func (in *instance) sleep(ns int64) {
	if ns <= 0 {
		return
	}
	t := time.NewTimer(time.Duration(ns))
	defer t.Stop()
	select {
	case <-t.C:
	case <-in.c.Done():
		in.c.mustGoOn()
	}
}

// initialize runs what the module's language needs before the first export.
func (in *instance) initialize() error {
	for _, name := range []string{"_initialize", "hs_init"} {
		def, ok := in.m.exports[name]
		if !ok {
			continue
		}
		var params []uint64
		switch n := len(def.ParamTypes()); {
		case n == 0:
		case name == "hs_init" && n == 2: // argc and argv
			params = []uint64{0, 0}
		default:
			return in.m.broken("export %q takes %d parameters, which no language does; rebuild the module", name, n)
		}
		if _, err := in.mod.ExportedFunction(name).Call(&in.c, params...); err != nil {
			if exit, ok := err.(*sys.ExitError); ok && exit.ExitCode() == 0 {
				return in.m.broken("left during %s; build it as a reactor (Go: -buildmode=c-shared, clang: -mexec-model=reactor)", name)
			}
			return in.initFailed(name, err)
		}
	}
	return nil
}

// initFailed is the error of a module that cannot even be started. A limit,
// a timeout or an abort keeps its own code.
func (in *instance) initFailed(what string, err error) error {
	e := in.c.classify(what, err)
	if e.Code == wire.GuestTrap {
		e.Code = wire.ToolBroken
	}
	return e
}

// close gives everything back.
func (in *instance) close() {
	if in.mod != nil {
		in.mod.Close(context.Background())
	}
	if in.closeDirs != nil {
		in.closeDirs()
	}
}

// said is the first line that the guest wrote to stderr: where languages put
// the reason of a panic.
func (in *instance) said() string {
	s, _, _ := strings.Cut(strings.TrimSpace(string(in.stderr.b)), "\n")
	return strings.ToValidUTF8(s, "\uFFFD")
}

// head keeps the first kilobyte of what is written.
type head struct{ b []byte }

func (h *head) Write(p []byte) (int, error) {
	if room := 1024 - len(h.b); room > 0 {
		h.b = append(h.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
