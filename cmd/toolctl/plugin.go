package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/plugin"
	"github.com/toold/toold/pdk/toolchain"
)

func pluginVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plugin",
		Short: "Create, build, test, measure and try tools and policies",
		Long: `Create a project of a tool (or a policy) in Go, Rust, C or AssemblyScript; build
it; run its cases; measure it; inspect it; try it in a daemon that reloads it on
every save. docs/plugins.md is the tutorial.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.pluginNew(), s.pluginBuild(), s.pluginTest(), s.pluginBench(), s.pluginInspect(), s.pluginDev())
	return cmd
}

// folder returns the folder that a verb works on: its argument, or the current one.
func folder(words []string) string {
	if len(words) == 0 {
		return "."
	}
	return words[0]
}

func (s *state) pluginNew() *cobra.Command {
	var lang string
	var policy, component, asJSON bool
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Create a project that builds and passes its cases",
		Long: `Create the folder NAME with a tool of that name, in the language of --lang. It
contains the SDK: building it needs neither a checkout of toold nor a network, only
the language's compiler. With --policy it is the policy of the binary of that name
instead of a tool; with --component it is a component of WASI 0.2 in Rust, for which
cargo fetches wit-bindgen.`,
		Example: `  toolctl plugin new --lang rust greet
  toolctl plugin new --lang go --policy jq`,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) != 1 {
				return usageError{errors.New("name one tool: toolctl plugin new --lang go hello")}
			}
			if component && (policy || lang != string(toolchain.Rust)) {
				return usageError{errors.New("a component is a tool in Rust: toolctl plugin new --lang rust --component hello")}
			}
			create := func() error { return plugin.New(words[0], toolchain.Language(lang), policy) }
			if component {
				create = func() error { return plugin.NewComponent(words[0]) }
			}
			if err := create(); err != nil {
				if _, ok := errors.AsType[*plugin.NameError](err); ok {
					return usageError{err}
				}
				return err
			}
			_, missing := toolchain.Find(cmd.Context(), toolchain.Language(lang), words[0])
			if asJSON {
				out := map[string]string{"dir": words[0], "lang": lang}
				if missing != nil {
					out["missing"] = missing.Error()
				}
				return s.printJSON(out)
			}
			next := "toolctl plugin test"
			if dir := filepath.Clean(words[0]); dir != "." {
				next = "cd " + quoted(dir) + " && " + next
			}
			fmt.Fprintf(s.out, "made %s; next: %s\n", words[0], next)
			if missing != nil {
				fmt.Fprintf(s.err, "toolctl: %v\n", missing)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "go", "go, rust, c or assemblyscript")
	cmd.Flags().BoolVar(&policy, "policy", false, "a policy for the binary of that name")
	cmd.Flags().BoolVar(&component, "component", false, "a component of WASI 0.2, in Rust")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// quoted returns a word quoted for a shell.
func quoted(word string) string {
	if strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

func (s *state) pluginBuild() *cobra.Command {
	var strip, asJSON bool
	cmd := &cobra.Command{
		Use:   "build [DIR] [-- FLAGS...]",
		Short: "Build the folder's modules: handler.wasm, restricted.wasm",
		Long: `Build the project in the folder with the compiler of its language, and put each
module at its top: handler.wasm if it exports handle, restricted.wasm if it only
exports restrict. FLAGS are passed to the compiler.`,
		RunE: func(cmd *cobra.Command, words []string) error {
			dir, flags := ".", []string(nil)
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				words, flags = words[:n], words[n:]
			}
			if len(words) > 1 {
				return usageError{fmt.Errorf("one folder at a time; put the compiler's flags behind --")}
			}
			dir = folder(words)
			p, err := plugin.Open(dir)
			if err != nil {
				return err
			}
			built, err := p.Build(cmd.Context(), strip, flags)
			if err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(built)
			}
			for _, m := range built {
				fmt.Fprintf(s.out, "%s  %s  sha256 %s\n", filepath.Join(dir, m.File), size(int64(m.Size)), m.SHA256)
				for _, line := range m.Needs {
					fmt.Fprintf(s.out, "  needs in tool.json: %s\n", line)
				}
				for _, line := range m.Notes {
					fmt.Fprintf(s.out, "  note: %s\n", line)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strip, "strip", false, "remove names and lines: smaller modules, but less detail in traps")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *state) pluginTest() *cobra.Command {
	var asJSON, noBuild bool
	var file, run string
	cmd := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Build the folder and run its cases",
		Long: `Build the folder, then run the cases of cases.json against its modules, in the
real engine with the limits and capabilities of its tool.json. Requests and
programs are answered from the case: nothing leaves this machine.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			dir := folder(words)
			if !noBuild {
				p, err := plugin.Open(dir)
				if err != nil {
					return err
				}
				built, err := p.Build(cmd.Context(), false, nil)
				if err != nil {
					return err
				}
				// Not on the stream of the outcomes, which programs may read.
				for _, m := range built {
					for _, line := range m.Notes {
						fmt.Fprintf(s.err, "note  %s\n", line)
					}
				}
			}
			cases, err := plugin.LoadCases(first(file, filepath.Join(dir, plugin.CasesFile)))
			if err != nil {
				return err
			}
			w, err := plugin.OpenRunner(dir, compiledCache())
			if err != nil {
				return err
			}
			defer w.Close()
			outcomes, failed := []plugin.Outcome{}, 0
			for i := range cases {
				if run != "" && !strings.Contains(cases[i].Name, run) {
					continue
				}
				o := w.Run(cmd.Context(), &cases[i])
				if outcomes = append(outcomes, o); !o.OK {
					failed++
				}
			}
			if asJSON {
				if err := s.printJSON(outcomes); err != nil {
					return err
				}
			} else {
				s.showOutcomes(outcomes)
				cases := "cases"
				if len(outcomes) == 1 {
					cases = "case"
				}
				fmt.Fprintf(s.out, "%d %s, %d failed\n", len(outcomes), cases, failed)
			}
			if failed > 0 || len(outcomes) == 0 {
				return exitStatus(1)
			}
			return nil
		},
	}
	f := cmd.Flags()
	jsonFlag(cmd, &asJSON)
	f.BoolVar(&noBuild, "no-build", false, "test the existing modules")
	f.StringVar(&file, "cases", "", "the file with the cases (default DIR/cases.json)")
	f.StringVar(&run, "run", "", "only cases with this in their name")
	return cmd
}

func (s *state) showOutcomes(outcomes []plugin.Outcome) {
	for _, o := range outcomes {
		word := "ok  "
		if !o.OK {
			word = "FAIL"
		}
		fmt.Fprintf(s.out, "%s  %s\n", word, o.Name)
		for _, d := range o.Differences {
			fmt.Fprintf(s.out, "      %s\n", d)
		}
		if o.Next != "" {
			fmt.Fprintf(s.out, "      %s\n", o.Next)
		}
		if !o.OK {
			for _, line := range o.Log {
				fmt.Fprintf(s.out, "      log: %s\n", line)
			}
		}
	}
}

// compiledCache returns the folder that keeps compiled modules between runs, or "" if there is none.
func compiledCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir = filepath.Join(dir, "toolctl", "wasm")
	if os.MkdirAll(dir, 0o700) != nil {
		return ""
	}
	return dir
}

func (s *state) pluginBench() *cobra.Command {
	var asJSON bool
	var run, with string
	var calls int
	cmd := &cobra.Command{
		Use:   "bench [DIR]",
		Short: "Measure the folder's modules with one of their cases",
		Long: `Measure a module: its size, its load time (without a cache), the first call and
many further ones, the metered instructions of a call, and the pages that are
restored after it. The call is that of a case, the first one unless --run names
another, and must give the right answer. With --with a second module is measured
with the same call.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			dir := folder(words)
			cases, err := plugin.LoadCases(filepath.Join(dir, plugin.CasesFile))
			if err != nil {
				return err
			}
			at := slices.IndexFunc(cases, func(c plugin.Case) bool { return strings.Contains(c.Name, run) })
			if at < 0 {
				return fmt.Errorf("no case has %q in its name", run)
			}
			modules := []string{""}
			if with != "" {
				modules = append(modules, with)
			}
			var all []*plugin.Measurement
			for _, m := range modules {
				got, err := plugin.Bench(cmd.Context(), dir, m, &cases[at], calls)
				if err != nil {
					return err
				}
				all = append(all, got)
			}
			if asJSON {
				return s.printJSON(all)
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(w, "module\tsize\tload\tfirst call\tp50\tp99\tfuel\tpages\tmemory\t")
			for _, m := range all {
				fmt.Fprintf(w, "%s\t%s\t%.1f ms\t%.0f us\t%.1f us\t%.1f us\t%d\t%d\t%s\t\n", m.File, size(int64(m.Size)), m.LoadMS, m.FirstUS, m.P50US, m.P99US, m.Fuel, m.Pages, size(m.Memory))
			}
			if len(all) == 2 {
				ratio := func(a, b float64) string {
					if a == 0 {
						return "-"
					}
					return fmt.Sprintf("%.2fx", b/a)
				}
				a, b := all[0], all[1]
				fmt.Fprintf(w, "second / first\t%s\t%s\t%s\t%s\t%s\t%s\t\t%s\t\n", ratio(float64(a.Size), float64(b.Size)), ratio(a.LoadMS, b.LoadMS),
					ratio(a.FirstUS, b.FirstUS), ratio(a.P50US, b.P50US), ratio(a.P99US, b.P99US), ratio(float64(a.Fuel), float64(b.Fuel)), ratio(float64(a.Memory), float64(b.Memory)))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			for _, m := range all {
				if m.NotRestored != "" {
					fmt.Fprintf(s.out, "%s: every call gets an instance of its own: %s\n", m.File, m.NotRestored)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	jsonFlag(cmd, &asJSON)
	f.StringVar(&run, "run", "", "the case: the first with this in its name")
	f.StringVar(&with, "with", "", "a second module, to compare")
	f.IntVar(&calls, "calls", 2000, "how many calls")
	return cmd
}

func (s *state) pluginInspect() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE.wasm",
		Short: "Show what a module exports, imports, needs and costs",
		Long: `Read a module like a daemon: its exports and imports, the lines of tool.json that
grant its imports, its memory, its hash, and why calls cannot share one image of it.
With a cases.json in its folder, also the cost of each of those calls.`,
		RunE: func(cmd *cobra.Command, words []string) error {
			if len(words) != 1 {
				return usageError{errors.New("name one module: toolctl plugin inspect handler.wasm")}
			}
			got, err := plugin.Inspect(cmd.Context(), words[0], compiledCache())
			if err != nil {
				return err
			}
			if asJSON {
				return s.printJSON(got)
			}
			s.showInspected(words[0], got)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *state) showInspected(file string, got *plugin.Inspection) {
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	yes := map[bool]string{true: "yes", false: "no"}
	fmt.Fprintf(w, "module\t%s\n", file)
	fmt.Fprintf(w, "sha256\t%s\n", got.SHA256)
	fmt.Fprintf(w, "size\t%s, %d functions\n", size(int64(got.Size)), got.Functions)
	fmt.Fprintf(w, "memory\t%s at first, at most %s of its own\n", size(got.Memory), size(got.MemoryMax))
	fmt.Fprintf(w, "traps name functions\t%s\n", yes[got.Names])
	fmt.Fprintf(w, "lines (DWARF)\t%s\n", yes[got.Lines])
	if got.Command {
		fmt.Fprintf(w, "kind\tWASI command\n")
	}
	if c := got.Component; c != nil {
		kind := fmt.Sprintf("component of %d modules, of which one runs", c.Modules)
		if c.Adapted {
			kind += "; made of a module of WASI preview 1"
		}
		fmt.Fprintf(w, "kind\t%s\n", kind)
		for _, name := range c.World {
			fmt.Fprintf(w, "world imports\t%s\n", name)
		}
		for _, f := range c.Functions {
			if !f.Plain {
				fmt.Fprintf(w, "tool\t%s  (\"entry\": {\"export\": %q})\n", f.Tool, f.Name)
			}
		}
	}
	for _, x := range got.Exports {
		note := ""
		if !x.Callable {
			note = "  (not called by a host)"
		}
		fmt.Fprintf(w, "exports\t%s %s%s\n", x.Name, x.Type, note)
	}
	for _, im := range got.Imports {
		note := ""
		if got.Component != nil && im.Fault == "" {
			continue // the world defines it
		}
		if im.Fault != "" {
			note = "  REFUSED: " + im.Fault
		}
		fmt.Fprintf(w, "imports\t%s %s %s%s\n", im.Module, im.Name, im.Type, note)
	}
	for _, line := range got.Needs {
		fmt.Fprintf(w, "needs in tool.json\t%s\n", line)
	}
	switch {
	case got.Fault != "":
		fmt.Fprintf(w, "loads\tno: %s\n", got.Fault)
	case got.Unshared != "":
		fmt.Fprintf(w, "restored in place\tno: %s\n", got.Unshared)
	default:
		fmt.Fprintf(w, "restored in place\tyes\n")
	}
	for _, o := range got.Calls {
		note := ""
		if o.Cost.NotRestored != "" {
			note = ", not restored: " + o.Cost.NotRestored
		}
		fmt.Fprintf(w, "call %q\t%d fuel, %d pages, %s memory%s\n", o.Name, o.Cost.Fuel, o.Cost.Pages, size(o.Cost.PeakMemory), note)
	}
	w.Flush()
}

// size formats a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func (s *state) pluginDev() *cobra.Command {
	var toolsDir, name, root string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dev [DIR]",
		Short: "Build and serve the folder, again after every change",
		Long: `Build the folder and install it in a daemon, again whenever a file is saved. It
starts a daemon in a temporary folder and shows its log and decisions; with --tools
it uses the daemon of this tools folder.

If a version does not build or load, the previous one stays in use.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			dir, err := filepath.Abs(folder(words))
			if err != nil {
				return err
			}
			p, err := plugin.Open(dir)
			if err != nil {
				return err
			}
			if _, err := toolchain.Find(ctx, p.Language, dir); err != nil {
				return err
			}
			d := &dev{s: s, name: first(name, filepath.Base(dir)), tools: toolsDir, json: asJSON, versions: map[string]string{}}
			if toolsDir == "" {
				running, end, err := d.start(ctx, root)
				if err != nil {
					return err
				}
				defer end()
				ctx = running
			} else {
				d.admin = client.NewAdmin(s.places().Admin)
				if t, err := d.admin.Tool(ctx, d.name); err == nil {
					d.version = t.Version
				} else if !errors.Is(err, adminapi.ErrNotFound) {
					return daemonError(err)
				}
			}
			err = p.Dev(ctx, d.tools, d.name, func(b plugin.BuildResult) { d.report(ctx, b) })
			if ended, ok := errors.AsType[*daemonEnded](context.Cause(ctx)); ok && err == nil {
				return ended
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&toolsDir, "tools", "", "the tools folder of a running daemon (default: start a daemon)")
	f.StringVar(&name, "name", "", "the tool's name (default that of the folder)")
	f.StringVar(&root, "root", ".", "the root of the started daemon")
	f.BoolVar(&asJSON, "json", false, "print JSON, one object per line")
	return cmd
}

// dev serves what plugin dev builds.
type dev struct {
	s     *state
	name  string
	tools string
	admin *client.Admin
	json  bool
	// version is the one that served last. versions are those that served so far, keyed by what was dropped: a version
	// that is restored serves again.
	version  string
	versions map[string]string
	// broken is what the daemon last reported about a version that does not load.
	broken string
	// noted holds the notes on the previous version.
	noted []string
}

const (
	// noticed is how long a daemon takes to detect changed files.
	noticed = 400 * time.Millisecond
	// loaded is how long it takes to load them or to report why it cannot.
	loaded = 10 * time.Second
)

// say prints one event.
func (d *dev) say(event string, fields map[string]any, format string, values ...any) {
	if d.json {
		fields["event"] = event
		b, err := json.Marshal(fields)
		if err != nil {
			return
		}
		fmt.Fprintf(d.s.out, "%s\n", b)
		return
	}
	fmt.Fprintf(d.s.out, format+"\n", values...)
}

// start runs a daemon in a temporary folder. The returned context is cancelled when the daemon exits, with its reason
// as the cause.
func (d *dev) start(ctx context.Context, root string) (running context.Context, end func(), err error) {
	toold, err := beside("toold")
	if err != nil {
		return nil, nil, err
	}
	// Socket paths must be short.
	dir, err := os.MkdirTemp("/tmp", "toold-dev-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	d.tools = filepath.Join(dir, "tools.d")
	socket := filepath.Join(dir, "tool.sock")
	state := filepath.Join(dir, "state")
	for _, f := range []string{d.tools, state} {
		if err := os.Mkdir(f, 0o700); err != nil {
			return nil, nil, err
		}
	}
	// Modules that are already compiled need not be compiled again.
	if cache := compiledCache(); cache != "" {
		if err := os.Symlink(cache, filepath.Join(state, "cache")); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command(toold, "--tools", d.tools, "--socket", socket, "--state", state, "--root", root, "--log-level", "debug")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", toold, err)
	}
	logs := make(chan struct{})
	var last string
	running, cancel := context.WithCancelCause(ctx)
	go func() {
		defer close(logs)
		defer func() {
			if ctx.Err() == nil {
				cancel(&daemonEnded{last})
			}
		}()
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			last = lines.Text()
			d.logLine(lines.Bytes())
		}
	}()
	end = func() {
		cancel(context.Canceled)
		cmd.Process.Signal(syscall.SIGTERM)
		<-logs
		cmd.Wait()
		os.RemoveAll(dir)
	}
	ready := bufio.NewScanner(stdout)
	for ready.Scan() {
		if strings.HasPrefix(ready.Text(), "ready") {
			d.admin = client.NewAdmin(filepath.Join(state, "admin.sock"))
			d.say("ready", map[string]any{"socket": socket}, "ready; in another shell: toolctl --socket %s call %s -- ARGS...", socket, d.name)
			return running, end, nil
		}
	}
	end()
	return nil, nil, fmt.Errorf("start %s: it ended: %s", toold, last)
}

// daemonEnded is the reason why nothing is served any more.
type daemonEnded struct{ said string }

func (e *daemonEnded) Error() string {
	return "the daemon ended, and said last: " + e.said + "; start plugin dev again"
}

// logLine prints what the daemon logs about the tool: its messages and the outcomes of calls.
func (d *dev) logLine(b []byte) {
	var line struct {
		Msg     string  `json:"msg"`
		Level   string  `json:"level"`
		Tool    string  `json:"tool"`
		Message string  `json:"message"`
		Status  string  `json:"status"`
		Exit    int     `json:"exit_code"`
		MS      float64 `json:"duration_ms"`
		Rule    string  `json:"rule"`
		Code    string  `json:"code"`
		Error   string  `json:"error"`
	}
	if json.Unmarshal(b, &line) != nil || line.Tool != d.name {
		return
	}
	switch line.Msg {
	case "guest":
		d.say("log", map[string]any{"level": line.Level, "message": line.Message}, "log   %s: %s", strings.ToLower(line.Level), oneLine(line.Message))
	case "call":
		what := fmt.Sprintf("%s, exit %d", line.Status, line.Exit)
		if line.Rule != "" {
			what += ", allowed by rule " + line.Rule
		}
		if line.Code != "" {
			what = line.Code + ": " + oneLine(line.Error)
		}
		d.say("call", map[string]any{"status": line.Status, "exit_code": line.Exit, "rule": line.Rule, "code": line.Code, "error": line.Error, "duration_ms": line.MS},
			"call  %s (%.0f ms)", what, line.MS)
	}
}

// report waits until the daemon serves what was built, or reports why it does not.
func (d *dev) report(ctx context.Context, b plugin.BuildResult) {
	if b.Err != nil {
		d.say("failed", map[string]any{"error": b.Err.Error()}, "FAIL  %v", b.Err)
		return
	}
	total := 0
	var notes []string
	for _, m := range b.Modules {
		total += m.Size
		notes = append(notes, m.Notes...)
	}
	// Each note is printed once, not for every version.
	for _, line := range notes {
		if !slices.Contains(d.noted, line) {
			d.say("note", map[string]any{"note": line}, "note  %s", line)
		}
	}
	d.noted = notes
	if !b.Changed {
		d.say("unchanged", map[string]any{}, "      the modules and tool.json are as before")
		return
	}
	want, again := d.versions[b.Digest]
	dropped := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	patience := time.NewTimer(30 * time.Second)
	defer patience.Stop()
	for {
		t, err := d.admin.Tool(ctx, d.name)
		switch {
		case err == nil && t.State == adminapi.ToolOK && (again && t.Version == want || !again && t.Version != d.version):
			d.version, d.versions[b.Digest], d.broken = t.Version, t.Version, ""
			took := time.Since(b.Saved)
			d.say("served", map[string]any{"ms": took.Milliseconds(), "build_ms": b.Took.Milliseconds(), "size": total, "version": t.Version},
				"serve %s %s: %.2f s after the change, %.2f s of it building", d.name, size(int64(total)), took.Seconds(), b.Took.Seconds())
			return
		// A daemon that has not checked yet, or is still loading, reports the previous error.
		case err == nil && t.State != adminapi.ToolOK && t.Reason != "" && t.State != adminapi.ToolLoading && t.State != adminapi.ToolUpdating && time.Since(dropped) > noticed &&
			(t.Reason != d.broken || time.Since(dropped) > loaded):
			d.broken = t.Reason
			d.say(t.State, map[string]any{"error": t.Reason}, "FAIL  %s: %s", t.State, oneLine(t.Reason))
			return
		case err != nil && !errors.Is(err, adminapi.ErrNotFound) && ctx.Err() == nil:
			err = fmt.Errorf("ask the daemon: %w; when it runs again, it serves this version", err)
			d.say("failed", map[string]any{"error": err.Error()}, "FAIL  %v", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-patience.C:
			d.say("failed", map[string]any{"error": "not served"}, "FAIL  the daemon does not serve it after 30 s; is %s its tools folder?", d.tools)
			return
		case <-tick.C:
		}
	}
}
