package guest

import (
	"context"
	"io"
	"time"

	"github.com/tetratelabs/wazero/sys"
)

// Command is one run of a WASI command.
type Command struct {
	Args []string // starts with the program's name
	Env  []string // NAME=value
	// Stdin is read when the guest reads it; nil is an empty input. A Read that does
	// not return keeps a goroutine alive until it does, but not the call.
	Stdin io.Reader
	// Stdout and Stderr receive what the guest writes; nil discards it.
	Stdout, Stderr io.Writer
	// Dirs are visible in addition to the Spec's Files.
	Dirs []Mount
	// Fuel is the same as Invocation.Fuel.
	Fuel int64
	Services
}

// Run runs "_start" on fresh state and returns the command's exit code. It returns the
// same errors as Call; exiting with any code is not an error.
func (m *Module) Run(ctx context.Context, cmd Command) (int, Stats, error) {
	if err := m.enter(ctx); err != nil {
		return 0, Stats{}, err
	}
	defer m.leave()
	m.sleeper.called.Store(true)
	start := "_start"
	if m.comp != nil {
		if run := m.comp.run(); run != nil {
			start = run.Core
		} else {
			start = ""
		}
	}
	t, ok := m.exports.funcs[start]
	if !ok {
		return 0, Stats{}, m.errorf(NotCommand, "build it as a command", `has no export "_start": it is not a WASI command`)
	}
	if m.comp == nil && (!callable(t) || len(t.Results) != 0) {
		return 0, Stats{}, m.errorf(BadModule, "rebuild the module", `export "_start" is %s, but must be () -> ()`, signature(t.Params, t.Results))
	}
	if err := ctx.Err(); err != nil {
		return 0, Stats{}, ended(err)
	}
	if !m.command {
		return 0, Stats{}, m.errorf(NotCommand, "build it without them", `imports functions of plugins beside its "_start"`)
	}
	var in *instance
	var err error
	if m.snap != nil {
		in, err = m.instantiate(m.snap, &cmd)
	} else {
		in, err = m.initialized(ctx, &cmd)
	}
	if err != nil {
		return 0, Stats{}, err
	}
	defer in.close()
	inv := &Invocation{Fuel: cmd.Fuel, Services: cmd.Services}
	if err := in.beginRun(ctx, inv, m.spec.Config); err != nil {
		return 0, Stats{}, err
	}
	var result [1]uint64 // of a component's run: 1 is an error
	err = in.run(in.mod.ExportedFunction(start), result[:])
	stats := in.c.stats()
	if err == nil && in.c.meter.used() > in.c.meter.limit {
		err = in.c.outOfFuel()
	}
	if exit, ok := err.(*sys.ExitError); ok {
		return int(exit.ExitCode()), stats, nil
	}
	if err != nil {
		return 0, stats, in.c.classify("_start", err)
	}
	return int(uint32(result[0])), stats, nil
}

// output writes to w, which may block until somebody reads.
type output struct {
	c *call
	w io.Writer
}

func (o output) Write(p []byte) (int, error) {
	if o.w == nil {
		return len(p), nil
	}
	o.c.pause()
	return o.w.Write(p)
}

// input reads r and stops waiting for it when the call ends.
type input struct {
	c       *call
	r       io.Reader
	pending chan read
	rest    []byte
	err     error
}

type read struct {
	p   []byte
	err error
}

func (in *input) Read(p []byte) (int, error) {
	if in.r == nil {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if len(in.rest) == 0 && in.err == nil {
		in.c.pause()
		in.begin(min(len(p), 64<<10))
		select {
		case got := <-in.pending:
			in.pending = nil
			in.rest, in.err = got.p, got.err
		case <-in.c.Done():
			in.c.checkCanceled()
		}
	}
	if len(in.rest) > 0 {
		n := copy(p, in.rest)
		in.rest = in.rest[n:]
		return n, nil
	}
	return 0, in.err
}

// begin starts a read of up to n bytes, unless one is in progress.
func (in *input) begin(n int) {
	if in.pending != nil {
		return
	}
	in.pending = make(chan read, 1)
	r, ch, buf := in.r, in.pending, make([]byte, n)
	go func() {
		n, err := r.Read(buf)
		ch <- read{buf[:n], err}
	}()
}

// inputEnded is the result of await at the end of the input.
const inputEnded = -1

// firstLook is the minimum wait when a command checks for input for the first time,
// even if it asked not to wait.
const firstLook = 10 * time.Millisecond

// await waits at most the given time for input and returns the minimum number of bytes
// available: 0 for none, or inputEnded.
func (in *input) await(most time.Duration) int {
	if in.r == nil {
		return inputEnded
	}
	if in.pending == nil {
		// Input that is already available is read quickly, but not instantly.
		most = max(most, firstLook)
	}
	t := time.NewTimer(most)
	defer t.Stop()
	for len(in.rest) == 0 && in.err == nil {
		in.begin(4 << 10)
		c := in.c
		c.wait()
		select {
		case got := <-in.pending:
			in.pending = nil
			in.rest, in.err = got.p, got.err
		case <-t.C:
			return 0
		case <-c.Done():
		}
		c.checkCanceled()
		c.meter.last = time.Now()
	}
	if len(in.rest) == 0 {
		return inputEnded
	}
	return len(in.rest)
}
