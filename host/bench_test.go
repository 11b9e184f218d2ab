package host_test

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// side is one of two things that a benchmark compares.
type side struct {
	name string
	run  func(b *testing.B)
	took []time.Duration
}

// compare runs both sides in turn, so that a machine that changes its speed
// changes it for both, and reports their medians, the ratio and what the
// first one adds.
func compare(b *testing.B, ours, theirs *side) {
	b.Helper()
	for _, s := range []*side{ours, theirs} { // warm
		for range 5 {
			s.run(b)
		}
	}
	for b.Loop() {
		for _, s := range []*side{ours, theirs} {
			start := time.Now()
			s.run(b)
			s.took = append(s.took, time.Since(start))
		}
	}
	median := func(s *side) float64 {
		slices.Sort(s.took)
		return float64(s.took[len(s.took)/2].Nanoseconds()) / 1e3
	}
	o, t := median(ours), median(theirs)
	b.ReportMetric(o, ours.name+"-µs")
	b.ReportMetric(t, theirs.name+"-µs")
	b.ReportMetric(o/t, "ratio")
	b.ReportMetric(o-t, "added-µs")
	b.ReportMetric(0, "ns/op") // of both sides together: says nothing
}

func runs(path string, dir string, env []string, args ...string) func(*testing.B) {
	return func(b *testing.B) {
		cmd := exec.Command(path, args...)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v: %s", path, err, out)
		}
	}
}

// wrapper builds tool-client and links it under name.
func wrapper(b testing.TB, name string) string {
	b.Helper()
	dir := b.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "tool-client"), "./cmd/tool-client")
	cmd.Dir = hosttest.ModuleRoot()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build tool-client: %v\n%s", err, out)
	}
	path := filepath.Join(dir, name)
	if err := os.Symlink("tool-client", path); err != nil {
		b.Fatal(err)
	}
	return path
}

// BenchmarkGitVersion is `git --version` through wrapper, daemon and policy
// against git alone.
func BenchmarkGitVersion(b *testing.B) {
	d := hosttest.Start(b, config.Config{})
	git, err := exec.LookPath("git")
	if err != nil {
		b.Skip("git is not installed")
	}
	d.Ready(b, "git")
	compare(b,
		&side{name: "wrapped", run: runs(wrapper(b, "git"), d.Root, []string{"TOOL_SOCKET=" + d.Socket}, "--version")},
		&side{name: "git", run: runs(git, d.Root, []string{"PATH=/usr/bin:/bin"}, "--version")})
}

// BenchmarkWrapperStart is a tool-client that starts and has nowhere to call
// (exit code 64) against /bin/true.
func BenchmarkWrapperStart(b *testing.B) {
	path := wrapper(b, "wrapper")
	start := func(b *testing.B) {
		cmd := exec.Command(path)
		cmd.Env = []string{}
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 64 {
			b.Fatalf("the wrapper ended with %v", err)
		}
	}
	compare(b,
		&side{name: "wrapper", run: start},
		&side{name: "true", run: runs("/bin/true", "/", nil)})
}

// greet builds the example tool in C, policy and handler, or skips.
func greet(b *testing.B) map[string]string {
	b.Helper()
	root, modules := hosttest.ModuleRoot(), map[string]string{}
	for _, name := range []string{"handler", "policy"} {
		out := filepath.Join(b.TempDir(), name+".wasm")
		cmd := exec.Command("clang", "--target=wasm32", "-O2", "-nostdlib", "-mbulk-memory", "-Wl,--no-entry", "-Wl,-s",
			"-I", filepath.Join(root, "pdk/c"), "-o", out, filepath.Join(root, "sdk-examples/c", name+".c"))
		if msg, err := cmd.CombinedOutput(); err != nil {
			b.Skipf("clang cannot build for wasm32: %v: %s", err, msg)
		}
		modules[name+".wasm"] = out
	}
	modules["restricted.wasm"] = modules["policy.wasm"]
	delete(modules, "policy.wasm")
	return modules
}

// BenchmarkWasmCall is a call of a module, without and with a policy, over a
// kept connection against a server on the same kind of socket that answers
// each frame of JSON with another. "c" is policy and handler in C.
func BenchmarkWasmCall(b *testing.B) {
	d := hosttest.Start(b, config.Config{})
	policy, handler := hosttest.Guest(b, policyPkg), hosttest.Guest(b, handlerPkg)
	d.Tool(b, "open", granted, map[string]string{"handler.wasm": handler})
	d.Tool(b, "guarded", granted, map[string]string{"handler.wasm": handler, "restricted.wasm": policy})
	echo := echoServer(b)
	for _, tool := range []string{"c", "open", "guarded"} {
		if tool == "c" {
			d.Tool(b, "c", M{"config": M{"greeting": "Hello"}, "policy": "required"}, greet(b))
		}
		req := M{"tool": tool, "args": []string{"some", "words"}, "cwd": d.Root}
		b.Run(tool, func(b *testing.B) {
			compare(b, &side{name: "call", run: over(b, d.Socket, req)}, &side{name: "echo", run: over(b, echo, req)})
		})
	}
}

// BenchmarkAudit is a call of a handler, and of a binary, through a daemon with the
// audit log against one without: a call that reads, and one that changes
// something, which waits for its record to be on the disk. "ratio" is of medians. What the
// log writes later, beside other calls, is in "processor", the ratio of the processor
// time of both sides; "allocations" is what a call has more.
func BenchmarkAudit(b *testing.B) {
	handler, policy := hosttest.Guest(b, handlerPkg), hosttest.Guest(b, policyPkg)
	sides := map[string]*hosttest.Daemon{}
	for _, mode := range []string{"on", "off"} {
		d := hosttest.Start(b, config.Config{Audit: config.AuditConfig{Mode: mode}})
		d.Tool(b, "open", granted, map[string]string{"handler.wasm": handler})
		d.Tool(b, "guarded", granted, map[string]string{"handler.wasm": handler, "restricted.wasm": policy})
		def := M{"mutating": true}
		for k, v := range granted {
			def[k] = v
		}
		d.Tool(b, "mutating", def, map[string]string{"handler.wasm": handler})
		d.Tool(b, "true", M{"binary": "/bin/true"}, nil)
		sides[mode] = d
	}
	for _, tool := range []string{"open", "guarded", "mutating", "true"} {
		b.Run(tool, func(b *testing.B) {
			run := func(mode string) *side {
				d := sides[mode]
				return &side{name: mode, run: over(b, d.Socket, M{"tool": tool, "args": []string{"some", "words"}, "cwd": d.Root})}
			}
			on, off := run("on"), run("off")
			compare(b, on, off)
			ours, theirs := works(b, on, off)
			b.ReportMetric(ours.processor/theirs.processor, "processor")
			b.ReportMetric(ours.allocations-theirs.allocations, "allocations")
		})
	}
}

// work is what a call takes of this process.
type work struct {
	processor   float64 // microseconds
	allocations float64
}

// works measures both sides in turn, many calls at a time, so that what a call leaves to
// be done later is counted with it, and returns the medians.
func works(b *testing.B, ours, theirs *side) (work, work) {
	const rounds, calls = 21, 100
	var got [2][]work
	for range rounds {
		for i, s := range []*side{ours, theirs} {
			var before, after runtime.MemStats
			var from, to syscall.Rusage
			runtime.ReadMemStats(&before)
			syscall.Getrusage(syscall.RUSAGE_SELF, &from)
			for range calls {
				s.run(b)
			}
			syscall.Getrusage(syscall.RUSAGE_SELF, &to)
			runtime.ReadMemStats(&after)
			took := to.Utime.Nano() + to.Stime.Nano() - from.Utime.Nano() - from.Stime.Nano()
			got[i] = append(got[i], work{float64(took) / 1e3 / calls, float64(after.Mallocs-before.Mallocs) / calls})
		}
	}
	median := func(list []work) work {
		p, a := []float64{}, []float64{}
		for _, w := range list {
			p, a = append(p, w.processor), append(a, w.allocations)
		}
		slices.Sort(p)
		slices.Sort(a)
		return work{p[rounds/2], a[rounds/2]}
	}
	return median(got[0]), median(got[1])
}

// over is a call over a kept connection.
func over(b *testing.B, socket string, req any) func(*testing.B) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	frame, err := json.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	return func(b *testing.B) {
		if err := wire.WriteFrame(c, frame); err != nil {
			b.Fatal(err)
		}
		raw, err := wire.ReadFrame(c)
		if err != nil {
			b.Fatal(err)
		}
		var a answer
		if err := json.Unmarshal(raw, &a); err != nil || a.ExitCode != 0 {
			b.Fatalf("%v: %s", err, raw)
		}
	}
}

// echoServer answers each frame with what a call could answer, read and
// written with encoding/json.
func echoServer(b *testing.B) string {
	dir, err := os.MkdirTemp("", "echo")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					raw, err := wire.ReadFrame(c)
					if err != nil {
						return
					}
					var req M
					if err := json.Unmarshal(raw, &req); err != nil {
						return
					}
					out, _ := json.Marshal(M{"exit_code": 0, "stdout": "some words", "stderr": "", "error": ""})
					if err := wire.WriteFrame(c, out); err != nil {
						return
					}
				}
			}()
		}
	}()
	return path
}

// BenchmarkCredential is a call of a binary whose requests get a credential against
// one of the same binary without: what it takes to have it trust the daemon.
func BenchmarkCredential(b *testing.B) {
	d := hosttest.Start(b, config.Config{})
	secret := filepath.Join(b.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("sesame-0123456789\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	def := func(secrets M) M {
		return M{"binary": "/bin/true", "capabilities": M{"network": []string{"localhost:443"}}, "secrets": secrets}
	}
	d.Tool(b, "with", def(M{"token": M{"from": "file:" + secret, "header": "Authorization", "host": "localhost:443"}}), nil)
	d.Tool(b, "without", def(M{"token": M{"from": "file:" + secret, "env": "TOKEN"}}), nil)
	request := func(tool string) M { return M{"tool": tool, "args": []string{}, "cwd": d.Root} }
	compare(b, &side{name: "with", run: over(b, d.Socket, request("with"))}, &side{name: "without", run: over(b, d.Socket, request("without"))})
}
