package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/guest/wasm"
	"github.com/toold/toold/host/regular"
)

// The author of a module decides how expensive it is to compile: 27 KB can take 11
// seconds and 690 MB, and compilation cannot be interrupted. So another process
// compiles, under limits, and leaves machine code in a folder. This process loads only
// code that it has seen being made, and identifies it by its checksum.

const (
	compileVerb = "toold:compile"
	// compileAtOnce limits the number of compiler processes, whatever is being loaded.
	compileAtOnce = 2
	// compileFirst is the number of additional processes for modules with priority.
	compileFirst = 1
)

// budget limits the compilation of one module.
type budget struct {
	cpu    time.Duration
	time   time.Duration // wall-clock time, for when the machine or its disk does not get on
	memory int64         // bytes
}

// wallPerCPU is how much longer than its CPU time a compilation may take. The kernel ends
// it at its CPU time, so this only frees its place where other work, which is not the
// module's fault, leaves it next to none: the load is tried again then.
const wallPerCPU = 30

// budgetOf returns the budget for a number of bytes of code and data. Code from
// compilers takes one second and 60 MB per megabyte; a small module that takes more was
// built to do so.
func budgetOf(size int) budget {
	mb := int64(size) >> 20
	cpu := 20*time.Second + time.Duration(mb)*2*time.Second // CPU time: half as long on two cores
	return budget{cpu: cpu, time: wallPerCPU * cpu, memory: 1<<30 + mb*64<<20}
}

// within applies the limits of a Spec that are set.
func (b budget) within(l CompileLimits) budget {
	if l.Time > 0 {
		b.cpu, b.time = l.Time, wallPerCPU*l.Time
	}
	if l.Memory > 0 {
		b.memory = l.Memory
	}
	return b
}

// compilingVariable is set to the budget in the process that compiles. Without it, a
// program that names itself as Config.Compiler and does not check IsCompiler would
// start itself endlessly.
const compilingVariable = "TOOLD_GUEST_COMPILING"

// IsCompiler reports whether this process was started to compile a module. A program
// that sets Config.Compiler to itself must check it first in main, and if true exit
// with the result of Compile.
func IsCompiler() bool { return len(os.Args) == 3 && os.Args[1] == compileVerb }

// isCompiled is printed by the process once the machine code is complete. If it fails
// afterwards, the module only loses its line table.
const isCompiled = "compiled\n"

// Compile compiles the module on standard input into the folder given on the command
// line.
func Compile() int {
	runtime.GOMAXPROCS(2)
	var most budget
	_, err := fmt.Sscanf(os.Getenv(compilingVariable), "%d %d", &most.cpu, &most.memory)
	if err == nil {
		reached := make(chan os.Signal, 1)
		signal.Notify(reached, unix.SIGXCPU)
		go func() {
			<-reached
			os.Exit(outOfTime)
		}()
		err = limitCompiler(most)
	}
	var module []byte
	if err == nil {
		module, err = io.ReadAll(io.LimitReader(os.Stdin, maxFile))
	}
	if err == nil {
		err = compileInto(context.Background(), os.Args[2], module, func() { os.Stdout.WriteString(isCompiled) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, firstLine(err))
		return 1
	}
	return 0
}

// rewrite returns a module in the form in which it is compiled and run. The memory
// limit is checked when memory grows, so that a guest that was refused can be
// distinguished from one that never asked, and so that a change of Spec.Memory requires
// no compilation.
func rewrite(module []byte) (*wasm.Module, error) {
	return wasm.Rewrite(module, wasm.Limits{Size: maxFile, MemoryPages: maxMemory/wasmPage + 1})
}

// linesFile is the file into which compileInto writes the line table, if there is one.
const linesFile = "lines"

// compileInto leaves the code of one module in dir, where nothing else is,
// and its lines. It calls compiled between the one and the other.
//
// wazero keeps the bytes of all functions of a module that it has loaded, though it runs
// machine code: 2.9 MB of the 3.2 that a Go module took. So it is given the module's
// skeleton when it loads, and the machine code is filed here as that of the skeleton.
func compileInto(ctx context.Context, dir string, module []byte, compiled func()) (err error) {
	defer func() { // wazero panics when it gives up
		if r := recover(); r != nil {
			err = fmt.Errorf("compiler: %v", r)
		}
	}()
	m, err := rewrite(module)
	if err != nil {
		return err
	}
	skeleton, err := wasm.Skeleton(m.Bytes, sha256.Sum256(m.Bytes))
	if err != nil {
		return err
	}
	file, err := compileTo(ctx, dir, m.Bytes)
	if err != nil {
		return err
	}
	// Only wazero knows what it calls the file of a module.
	aside := filepath.Join(dir, "skeleton")
	name, err := compileTo(ctx, aside, skeleton)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Rename(file, filepath.Join(filepath.Dir(file), filepath.Base(name))), os.RemoveAll(aside)); err != nil {
		return err
	}
	compiled()
	if m.Debug == nil {
		return nil
	}
	// A module whose DWARF cannot be read still runs; its traps have no lines.
	if table, err := m.Debug.Lines(); err == nil {
		return os.WriteFile(filepath.Join(dir, linesFile), table, 0o600)
	}
	return nil
}

// compileTo compiles a module into dir, where nothing else is, and returns the file with
// its machine code.
func compileTo(ctx context.Context, dir string, module []byte) (file string, err error) {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return "", err
	}
	defer cache.Close(ctx)
	r := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(cache))
	defer r.Close(ctx)
	c, err := r.CompileModule(experimental.WithCompilationWorkers(ctx, 2), module)
	if err != nil {
		return "", err
	}
	if err := c.Close(ctx); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("the compiler left %d files, not 1", len(found))
	}
	return found[0], nil
}

// runtimeConfig is the same where modules are compiled and where they run.
// With debug information wazero tells the offset of each function of a trap,
// when the module has DWARF: what wasm.Rewrite gives it.
func runtimeConfig(cache wazero.CompilationCache) wazero.RuntimeConfig {
	return wazero.NewRuntimeConfigCompiler().
		WithCompilationCache(cache).
		WithCoreFeatures(features).
		WithDebugInfoEnabled(true)
}

// build is a module being compiled; everyone who needs it waits for done.
type build struct {
	done chan struct{}
	err  error
	// first is closed when a caller with priority needs the module; guarded by
	// Engine.mu until then.
	first   chan struct{}
	hurried bool // guarded by Engine.mu
}

// compiled returns a module's code. It compiles the module first if the code is not in
// the cache or is damaged there.
func (e *Engine) compiled(ctx context.Context, m *Module, p *program) (wazero.CompiledModule, error) {
	sum := sha256.Sum256(p.rewritten.Bytes)
	m.seed = e.seedOf(sum)
	code, err := wasm.Skeleton(p.rewritten.Bytes, sum)
	if err != nil {
		return nil, m.errorf(Internal, "", "%w", err)
	}
	key := sha256.Sum256(code)
	if m.lines = ""; p.rewritten.Debug != nil {
		m.lines = e.lines(key)
	}
	for attempt := 0; ; attempt++ {
		if e.intact(key) {
			c, err := e.loadOnly(m.home, code)
			if err == nil {
				return c, nil
			}
			if !errors.Is(err, context.Canceled) {
				return nil, m.errorf(BadModule, "build it again for wasip1 or wasm32", "%s", firstLine(err))
			}
			e.forget(key)
		}
		if attempt == 2 {
			return nil, m.errorf(Internal, "delete the folder", "its code is compiled, but not found in the cache folder %s", e.dir)
		}
		if err := e.build(ctx, buildKey{key, budgetOf(len(p.rewritten.Bytes)).within(m.spec.Compile)}, p.wasm, m.spec.First); err != nil {
			if e := own(err); e != nil {
				return nil, e
			}
			if u, ok := errors.AsType[*tooMuch](err); ok {
				return nil, m.errorf(u.kind, u.remedy, "%s", u.text)
			}
			return nil, m.errorf(BadModule, "", "%w", err)
		}
	}
}

// tooMuch is the error of a compilation that exceeded its budget.
type tooMuch struct {
	kind         Kind
	text, remedy string
}

func (e *tooMuch) Error() string { return e.text }

// outOfTime is the exit code of a compiler that has reached its limit of CPU time. What
// it has used is no measure of that: on a busy machine the kernel's count for limits, of
// clock ticks, and the one that it reports differ by much.
const outOfTime = 3

// killedAfter is for how many seconds of CPU time more the kernel lets a compiler end
// itself.
const killedAfter = 5

// exceeded returns the error of a compiler that ended with code and said text, and had
// used CPU time. late: it was ended at most.time.
func (most budget) exceeded(code int, used time.Duration, late bool, text string) error {
	e := &tooMuch{kind: TooMuchToCompile, remedy: "make its functions smaller"}
	switch {
	case code == outOfTime:
		e.text = fmt.Sprintf("compiling it takes more than %v of CPU time", most.cpu)
	case late:
		e.kind, e.remedy = Starved, "it is tried again by itself; leave toold more of the processors"
		e.text = fmt.Sprintf("this machine is busy: compiling it got %v of CPU time in %v, and was ended", used.Round(10*time.Millisecond), most.time)
	default:
		e.text = fmt.Sprintf("compiling it takes more than %d MiB of memory (%.200s)", most.memory>>20, text)
	}
	return e
}

// loadOnly takes the code of a skeleton from memory or the cache folder. With a context
// that has ended already wazero loads, but does not compile: the error is then
// context.Canceled.
func (e *Engine) loadOnly(r wazero.Runtime, code []byte) (wazero.CompiledModule, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.loading.Lock()
	defer e.loading.Unlock()
	return r.CompileModule(experimental.WithCompilationWorkers(ctx, 2), code)
}

// buildKey is the skeleton of a module, and what compiling it may take: what
// fails within one budget may not within another.
type buildKey struct {
	sum  [32]byte
	most budget
}

// build compiles a module, unless that is already in progress, and waits. If a caller
// has priority, the module does not wait for others.
func (e *Engine) build(ctx context.Context, key buildKey, module []byte, first bool) error {
	e.mu.Lock()
	b := e.builds[key]
	if b == nil {
		b = &build{done: make(chan struct{}), first: make(chan struct{})}
		e.builds[key] = b
		go func() {
			b.err = e.buildNow(key, module, b.first)
			e.mu.Lock()
			delete(e.builds, key)
			e.mu.Unlock()
			close(b.done)
		}()
	}
	if first && !b.hurried {
		b.hurried = true
		close(b.first)
	}
	e.mu.Unlock()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ended(ctx.Err())
	}
}

func (e *Engine) buildNow(key buildKey, module []byte, first <-chan struct{}) error {
	release := e.slot(first)
	if release == nil {
		return ended(e.closing.Err())
	}
	defer release()
	dir, err := os.MkdirTemp(e.dir, "build-")
	if err != nil {
		return errorf(Internal, "", "", "compile module: %w", err)
	}
	defer os.RemoveAll(dir)
	if e.cfg.Compiler == "" {
		err = compileInto(context.Background(), dir, module, func() {})
	} else {
		err = e.compileApart(dir, module, key.most)
	}
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(found) != 1 {
		return errorf(Internal, "", "", "compile module: it left %d files, not 1", len(found))
	}
	if err := e.keep(key.sum, found[0]); err != nil {
		return errorf(Internal, "", "", "keep compiled module: %w", err)
	}
	return nil
}

// slot waits until a module may be compiled and returns the function that releases the
// slot, or nil if the engine is closed.
func (e *Engine) slot(first <-chan struct{}) (release func()) {
	general := func() { <-e.slots }
	select {
	case e.slots <- struct{}{}:
		return general
	case <-first:
	case <-e.closing.Done():
		return nil
	}
	select {
	case e.slots <- struct{}{}:
		return general
	case e.first <- struct{}{}:
		return func() { <-e.first }
	case <-e.closing.Done():
		return nil
	}
}

// compileApart runs Compile in a separate process.
func (e *Engine) compileApart(dir string, module []byte, most budget) error {
	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(e.closing, most.time)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.cfg.Compiler, compileVerb, dir)
	cmd.Env = []string{fmt.Sprintf("%s=%d %d", compilingVariable, most.cpu, most.memory)}
	cmd.Stdin = bytes.NewReader(module)
	var done, said head
	cmd.Stdout, cmd.Stderr = &done, &said
	cmd.WaitDelay = time.Second
	endWithParent(cmd)
	err := cmd.Run()
	if err == nil || string(done.b) == isCompiled {
		return nil
	}
	if e.closing.Err() != nil {
		return ended(e.closing.Err())
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(said.b)), "\n")
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ctx.Err() == nil && exit.ExitCode() == 1 && text != "" {
			return errors.New(text + "; build it again for wasip1 or wasm32")
		}
		return most.exceeded(exit.ExitCode(), exit.UserTime()+exit.SystemTime(), ctx.Err() != nil, strings.TrimSuffix(fmt.Sprintf("%v: %s", err, text), ": "))
	}
	return errorf(Internal, "", "", "start compiler: %w", err)
}

// A cache entry is a file made by wazero, in the folder where wazero looks, and next to
// it a note, named after the module, with the name and digest of that file. A module
// with line information also has a line table, which is read when a trap is reported;
// it may be missing.

func (e *Engine) note(key [32]byte) string {
	return filepath.Join(e.dir, "notes", hex.EncodeToString(key[:]))
}

func (e *Engine) lines(key [32]byte) string {
	return filepath.Join(e.dir, "lines", hex.EncodeToString(key[:]))
}

// keep moves a compiled file to the folder where wazero looks and writes its note.
func (e *Engine) keep(key [32]byte, file string) error {
	version := filepath.Base(filepath.Dir(file))
	entry := filepath.Join(version, filepath.Base(file))
	sum, err := fileSum(file)
	if err != nil {
		return err
	}
	for _, d := range []string{version, "notes", "lines"} {
		if err := os.MkdirAll(filepath.Join(e.dir, d), 0o700); err != nil {
			return err
		}
	}
	if err := replace(file, filepath.Join(e.dir, entry)); err != nil {
		return err
	}
	dir := filepath.Dir(filepath.Dir(file))
	if err := replace(filepath.Join(dir, linesFile), e.lines(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp := filepath.Join(dir, "note")
	if err := os.WriteFile(tmp, []byte(entry+" "+sum+"\n"), 0o600); err != nil {
		return err
	}
	return replace(tmp, e.note(key))
}

// replace moves a file to a place in the cache. A folder that is there, which only
// somebody else can have made, is removed: nothing else is kept in the cache.
func replace(file, place string) error {
	if fi, err := os.Lstat(place); err == nil && fi.IsDir() {
		if err := os.RemoveAll(place); err != nil {
			return err
		}
	}
	return os.Rename(file, place)
}

// intact reports whether the cache holds a module's code undamaged. Damaged code is
// deleted.
func (e *Engine) intact(key [32]byte) bool {
	p, err := regular.ReadFile(e.note(key))
	if err != nil {
		return false
	}
	entry, sum, ok := strings.Cut(strings.TrimSpace(string(p)), " ")
	if !ok || !filepath.IsLocal(entry) || !strings.HasPrefix(sum, sumKind+":") { // written by another version
		e.forget(key)
		return false
	}
	if got, err := fileSum(filepath.Join(e.dir, entry)); err != nil || got != sum {
		if !errors.Is(err, fs.ErrNotExist) {
			e.cfg.Logger.Warn("compiled module is damaged; compiling it again", "file", entry, "error", err)
		}
		os.RemoveAll(filepath.Join(e.dir, entry))
		e.forget(key)
		return false
	}
	if st, err := os.Stat(e.note(key)); err == nil && time.Since(st.ModTime()) > 24*time.Hour {
		now := time.Now()
		os.Chtimes(e.note(key), now, now) // mark as used: see prune
	}
	return true
}

// unused is how long code is kept that no daemon loads.
const unused = 30 * 24 * time.Hour

// prune removes code that has not been loaded for a long time, such as that of replaced
// versions of tools.
func (e *Engine) prune() {
	copies, _ := filepath.Glob(filepath.Join(e.dir, "modules", "*"))
	for _, name := range copies {
		if st, err := os.Stat(name); err == nil && time.Since(st.ModTime()) >= unused {
			os.Remove(name)
		}
	}
	notes, _ := filepath.Glob(filepath.Join(e.dir, "notes", "*"))
	for _, note := range notes {
		st, err := os.Stat(note)
		if err != nil || time.Since(st.ModTime()) < unused {
			continue
		}
		p, err := regular.ReadFile(note)
		if err != nil {
			continue
		}
		if entry, _, ok := strings.Cut(strings.TrimSpace(string(p)), " "); ok && filepath.IsLocal(entry) {
			os.Remove(filepath.Join(e.dir, entry))
		}
		os.Remove(filepath.Join(e.dir, "lines", filepath.Base(note)))
		os.Remove(note)
	}
}

func (e *Engine) forget(key [32]byte) { os.Remove(e.note(key)) }

// sumKind names the algorithm of fileSum. It detects damage caused by a disk or a
// crash, and takes a tenth of the time of a cryptographic digest at each start: whoever
// can write here can also write the sum.
const sumKind = "crc32c"

func fileSum(name string) (string, error) {
	f, err := regular.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, f)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s:%08x:%d", sumKind, h.Sum32(), n), nil
}
