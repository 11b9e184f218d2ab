// Command gitsuite runs the tests of git itself, twice: with git, and with the
// wrapper of git in its place and a daemon behind it. It compares test by test, and
// writes what differs, and why, between two marks in docs/wrappers.md.
//
//	go run ./scripts/gitsuite [-update] [-files t0001,t3*] [-jobs 2] [-keep] FOLDER
//
// FOLDER keeps git's sources, which are fetched from Debian, and the programs of the
// suite, which are built there. bin/ and tools.d/ must be built.
//
// A call that the wrapper refuses is then made by git itself, so that what comes
// after it finds what it needs: each test is judged by its own calls. What the
// wrapper says of a call, a refusal or a note, is kept beside the number of the test.
// A test that passes with git and not through the wrapper, without a word from
// the wrapper, is a silent difference, and the exit code is 1.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Where the launcher, this program under the name of git, finds what it needs.
	wrapperVar = "GITSUITE_WRAPPER"
	logVar     = "GITSUITE_LOG"
	rootVar    = "GITSUITE_ROOT"
	gitPath    = "/usr/bin/git"
	execPath   = "/usr/lib/git-core"
)

func main() {
	if filepath.Base(os.Args[0]) == "git" {
		os.Exit(launch())
	}
	s := suite{}
	flag.BoolVar(&s.update, "update", false, "write the table of docs/wrappers.md anew")
	flag.StringVar(&s.files, "files", "t[0-7]*", "patterns of the files to run, separated by commas, without .sh")
	flag.IntVar(&s.jobs, "jobs", 2, "how many files run at once")
	flag.DurationVar(&s.most, "most", 5*time.Minute, "how long a file may take")
	flag.DurationVar(&s.all, "all", time.Hour, "how long all may take")
	flag.StringVar(&s.report, "report", "", "a file for a line of each test that differs, and, beside it, a folder for all that was said")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: gitsuite [flags] FOLDER")
		os.Exit(64)
	}
	if err := s.run(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "gitsuite:", err)
		os.Exit(1)
	}
}

// said is one thing that the wrapper said of a call.
type said struct {
	Test string   `json:"test"` // its number; 0 is before the first
	Rule string   `json:"rule"` // of a refusal; "note" or "home"
	Text string   `json:"text"`
	Args []string `json:"args"`
}

// launch is git to the suite: it calls the wrapper, and git itself where that
// refuses.
func launch() int {
	args := os.Args[1:]
	if len(args) == 1 && args[0] == "--exec-path" {
		fmt.Println(execPath)
		return 0
	}
	if dir, err := os.Getwd(); err == nil && !strings.HasPrefix(dir, os.Getenv(rootVar)) {
		// The suite looks around before it begins.
		syscall.Exec(gitPath, append([]string{"git"}, args...), os.Environ())
	}
	log := func(rule, text string) {
		f, err := os.OpenFile(os.Getenv(logVar), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return
		}
		b, _ := json.Marshal(said{os.Getenv("test_count"), rule, text, os.Args[1:]})
		f.Write(append(b, '\n'))
		f.Close()
	}
	if f, err := os.Stat(filepath.Join(os.Getenv("HOME"), ".gitconfig")); err == nil && f.Size() > 0 {
		log("home", "the caller's own ~/.gitconfig is not read")
	}
	asked := args
	args = forSuite(args)
	cmd := exec.Command(os.Getenv(wrapperVar), args...)
	// Variables of all tests that are as if they were not set.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		if strings.HasPrefix(kv, "GIT_TEST_") && !strings.HasPrefix(kv, "GIT_TEST_DATE_NOW=") && !strings.HasPrefix(kv, "GIT_TEST_CAT_FILE_") {
			return true
		}
		if v, ok := strings.CutPrefix(kv, "GIT_CEILING_DIRECTORIES="); ok && filepath.Clean(v) == filepath.Join(os.Getenv(rootVar), "wrapped") {
			return true
		}
		return slices.Contains([]string{"GIT_CONFIG_NOSYSTEM=1", "GIT_DEFAULT_HASH=sha1", "GIT_MERGE_AUTOEDIT=no"}, kv) || strings.HasPrefix(kv, "GIT_TEMPLATE_DIR=") || strings.HasPrefix(kv, "GIT_TRACE2_EVENT_NESTING=") || strings.HasPrefix(kv, "GIT_TRACE_BARE=") || kv == "GIT_MERGE_VERBOSITY=5"
	})
	cmd.Stdin = os.Stdin
	r, w, err := os.Pipe()
	if err != nil {
		return 125
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, w
	together := same(os.Stdout, os.Stderr)
	if together {
		cmd.Stdout = w
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	w.Close()
	// Tests end git by the number of its process, which is this one.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	refused := passOn(r, log)
	cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	if code == 126 && refused != "" {
		_, rest, _ := strings.Cut(refused, ": denied by rule ")
		rule, text, _ := strings.Cut(rest, ": ")
		log(rule, text)
		if err := syscall.Exec(gitPath, append([]string{"git"}, asked...), os.Environ()); err != nil {
			return 125
		}
	}
	return code
}

// forSuite returns the arguments with what the suite tells its own git by variables
// that are for its tests alone: the name of a first branch, and which merge is
// meant by the name of the older one.
func forSuite(args []string) []string {
	args = slices.Clone(args)
	begins := func(a string) bool { return strings.HasPrefix(a, "init.defaultBranch") }
	if v := os.Getenv("GIT_TEST_DEFAULT_INITIAL_BRANCH_NAME"); v != "" && v != "master" && (slices.Contains(args, "init") || slices.Contains(args, "clone")) && !slices.ContainsFunc(args, begins) {
		args = append([]string{"-c", "init.defaultBranch=" + v}, args...)
	}
	if os.Getenv("GIT_TEST_MERGE_ALGORITHM") == "ort" {
		for i, a := range args {
			switch {
			case a == "--strategy=recursive":
				args[i] = "--strategy=ort"
			case a == "recursive" && i > 0 && (args[i-1] == "-s" || args[i-1] == "--strategy"):
				args[i] = "ort"
			}
		}
	}
	return args
}

// passOn passes on what the wrapper says on r, but for its notes, which are logged, and
// for what it begins with where it refuses the call, which is returned.
func passOn(r io.Reader, log func(rule, text string)) (refused string) {
	lines := bufio.NewReaderSize(r, 1<<16)
	for head := true; ; {
		line, err := lines.ReadString('\n')
		rest, isNote := strings.CutPrefix(line, "git: note: ")
		switch {
		case isNote:
			log("note", strings.TrimSpace(rest))
		case strings.HasPrefix(line, "tool-client: ") && !strings.Contains(line, ": denied by rule "), strings.Contains(line, "octopus-is-a-script"), strings.HasPrefix(line, "fatal: cannot exec '"):
			log("wrapper", strings.TrimSpace(line))
			os.Stderr.WriteString(line)
		case strings.Contains(line, " of your environment is not passed on"), strings.Contains(line, " of your environment are not passed on"):
			log("note", strings.TrimSpace(line))
		case head && strings.Contains(line, ": denied by rule "):
			refused = strings.TrimSpace(line)
		case line != "":
			head = false
			os.Stderr.WriteString(line)
		}
		if err != nil {
			return refused
		}
	}
}

// same reports whether two files are one.
func same(a, b *os.File) bool {
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}

type suite struct {
	files, report string
	update        bool
	jobs          int
	most, all     time.Duration

	source, work string // git's sources; where this run works
	mu           sync.Mutex
	results      []result
}

// result is what came of one file.
type result struct {
	file            string
	native, through map[string]bool // by the number of the test
	titles          map[string]string
	said            []said
	why             string // where the file could not be compared
}

func (s *suite) run(folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if s.source, err = sources(folder); err != nil {
		return err
	}
	// In memory where it can be had: the suite makes thousands of repositories.
	if s.work, err = os.MkdirTemp("/dev/shm", "toold-gitsuite-"); err != nil {
		if s.work, err = os.MkdirTemp("", "toold-gitsuite-"); err != nil {
			return err
		}
	}
	defer os.RemoveAll(s.work)
	stop, err := s.daemon()
	if err != nil {
		return err
	}
	defer stop()
	files, err := s.list()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.all)
	defer cancel()
	queue := make(chan string)
	var wg sync.WaitGroup
	for range s.jobs {
		wg.Go(func() {
			for file := range queue {
				r := s.file(ctx, file)
				s.mu.Lock()
				s.results = append(s.results, r)
				n := len(s.results)
				s.mu.Unlock()
				fmt.Fprintf(os.Stderr, "%d/%d %s\n", n, len(files), r.line())
			}
		})
	}
	for _, f := range files {
		queue <- f
	}
	close(queue)
	wg.Wait()
	slices.SortFunc(s.results, func(a, b result) int { return strings.Compare(a.file, b.file) })
	return s.judge()
}

// sources returns the folder of git's sources, of the version that is installed,
// with the programs of its tests built.
func sources(folder string) (string, error) {
	out, err := exec.Command(gitPath, "version").Output()
	if err != nil {
		return "", fmt.Errorf("find git: %w", err)
	}
	version := strings.Fields(string(out))[2]
	dir := filepath.Join(folder, "git-"+version)
	if _, err := os.Stat(filepath.Join(dir, "templates/blt")); err == nil {
		return dir, nil
	}
	if _, err := os.Stat(dir); err != nil {
		// apt with nothing of its own to write to but our folder, and as ourselves.
		script := `set -eu
mkdir -p "$1/apt/lists/partial" "$1/apt/cache/archives/partial"; cd "$1/apt"
release=$(. /etc/os-release; echo "$VERSION_CODENAME")
printf 'deb-src http://deb.debian.org/debian %s main\n' "$release" > sources.list
apt() {
	apt-get -qq -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=- "$@" </dev/null
}
apt update
apt source --download-only git
tar -xJf git_*.orig.tar.xz -C "$1"
rm -rf "$1/apt"`
		cmd := exec.Command("/bin/sh", "-c", script, "sh", folder)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return "", err
		}
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("fetch git's sources from Debian: %w", err)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", "make -s -j2 NO_CURL=1 NO_EXPAT=1 NO_TCLTK=1 NO_GETTEXT=1 NO_PYTHON=1 prefix=/usr gitexecdir="+execPath+" CFLAGS=-O0 t/helper/test-tool GIT-BUILD-OPTIONS && make -s -C templates")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the programs of git's tests in %s: %w", dir, err)
	}
	return dir, nil
}

// daemon starts one for this run alone, and makes the two folders with a git.
func (s *suite) daemon() (stop func(), err error) {
	for _, dir := range []string{"native", "wrapped", "tools", "state", "home", "trash/native", "trash/wrapped"} {
		if err := os.MkdirAll(filepath.Join(s.work, dir), 0o755); err != nil {
			return nil, err
		}
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile("tools.d/git/tool.json")
	if err != nil {
		return nil, err
	}
	var def map[string]any
	if err := json.Unmarshal(b, &def); err != nil {
		return nil, err
	}
	config, _ := def["config"].(map[string]any)
	out, _ := exec.Command(gitPath, "version").Output()
	if bytes.Compare(out, []byte("git version 2.40")) < 0 {
		config["bisect"] = "helper"
	}
	def["timeout"] = 60
	module, err := os.ReadFile("tools.d/git/restricted.wasm")
	if err != nil {
		return nil, err
	}
	b, err = json.Marshal(def)
	own, err2 := os.Executable()
	if err := errors.Join(err, err2, os.Mkdir(filepath.Join(s.work, "tools/git"), 0o755),
		os.WriteFile(filepath.Join(s.work, "tools/git/tool.json"), b, 0o644),
		os.WriteFile(filepath.Join(s.work, "tools/git/restricted.wasm"), module, 0o644),
		os.Symlink(gitPath, filepath.Join(s.work, "native/git")),
		os.Symlink(own, filepath.Join(s.work, "wrapped/git")),
		os.Mkdir(filepath.Join(s.work, "bin"), 0o755),
		os.Symlink(filepath.Join(here, "bin/tool-client"), filepath.Join(s.work, "bin/git"))); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(here, "bin/toold"), "--root", filepath.Join(s.work, "trash"), "--socket", s.socket(), "--state", filepath.Join(s.work, "state"), "--tools", filepath.Join(s.work, "tools"), "--log-level", "error")
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + filepath.Join(s.work, "home"), "LANG=C"}
	log, err := os.Create(filepath.Join(s.work, "daemon.log"))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	err = cmd.Start()
	log.Close()
	if err != nil {
		return nil, err
	}
	stop = func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() }
	var said []byte
	for range 600 {
		probe := exec.Command(filepath.Join(s.work, "bin/git"), "--version")
		probe.Dir, probe.Env = filepath.Join(s.work, "trash"), []string{"TOOL_SOCKET=" + s.socket()}
		if said, err = probe.CombinedOutput(); err == nil {
			return stop, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	return nil, fmt.Errorf("the daemon did not become ready within a minute: %s", said)
}

func (s *suite) socket() string { return filepath.Join(s.work, "tool.sock") }

// serving are files that need a server or a program which the daemon's git cannot
// have, and measure nothing here.
var serving = regexp.MustCompile(`^t(0021|0029|5[45]|57[0-9][0-9]|7[56]2|7900)|-(http|daemon|fsmonitor|svn|cvs|p4|perf)|credential`)

func (s *suite) list() ([]string, error) {
	var out []string
	for _, pattern := range strings.Split(s.files, ",") {
		found, err := filepath.Glob(filepath.Join(s.source, "t", pattern+"*.sh"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			name := strings.TrimSuffix(filepath.Base(f), ".sh")
			if regexp.MustCompile(`^t[0-9]{4}-`).MatchString(name) && !serving.MatchString(name) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return nil, fmt.Errorf("no file of %s matches %s", s.source, s.files)
	}
	return out, nil
}

// file runs a file both ways.
func (s *suite) file(ctx context.Context, name string) result {
	r := result{file: name, titles: map[string]string{}}
	log := filepath.Join(s.work, name+".said")
	var err error
	if r.native, err = s.once(ctx, name, "native", nil, r.titles); err != nil {
		r.why = "with git itself: " + err.Error()
		return r
	}
	if len(r.native) == 0 {
		r.why = "skipped"
		return r
	}
	r.through, err = s.once(ctx, name, "wrapped", []string{
		"TOOL_SOCKET=" + s.socket(), wrapperVar + "=" + filepath.Join(s.work, "bin/git"), logVar + "=" + log, rootVar + "=" + filepath.Join(s.work, "trash"),
		"TOOL_ENV=" + strings.Join(passed, ","),
	}, nil)
	if err != nil {
		r.why = "through the wrapper: " + err.Error()
	}
	b, _ := os.ReadFile(log)
	for line := range strings.Lines(string(b)) {
		var one said
		if json.Unmarshal([]byte(line), &one) == nil {
			r.said = append(r.said, one)
		}
	}
	return r
}

// passed are the variables that a caller of the suite would name in TOOL_ENV.
var passed = []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE", "TZ", "COLUMNS", "NO_COLOR", "TERM", "GIT_CEILING_DIRECTORIES", "GIT_DIFF_OPTS", "GIT_MERGE_VERBOSITY", "GIT_PRINT_SHA1_ELLIPSIS"}

var tap = regexp.MustCompile(`^(not ok|ok) (\d+) - (.*)`)

// once runs a file and answers which tests passed, by number. Those that are
// skipped, or known to fail, are none.
func (s *suite) once(ctx context.Context, name, how string, env []string, titles map[string]string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.most)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "./"+name+".sh", "--no-color", "--root="+filepath.Join(s.work, "trash", how))
	cmd.Dir = filepath.Join(s.source, "t")
	cmd.Env = append([]string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + filepath.Join(s.work, "home"), "LANG=C", "GIT_TEST_INSTALLED=" + filepath.Join(s.work, how),
		"TEST_OUTPUT_DIRECTORY=" + filepath.Join(s.work, "out-"+how), "test_count=0", "TERM=dumb",
	}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if s.report != "" && titles == nil {
		cmd.Args = append(cmd.Args, "-v")
		cmd.Stderr = &stdout
	}
	err := cmd.Run()
	out := stdout.Bytes()
	if s.report != "" {
		os.MkdirAll(s.report+".d", 0o755)
		os.WriteFile(filepath.Join(s.report+".d", name+"."+how), out, 0o644)
	}
	passed := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if m := tap.FindStringSubmatch(line); m != nil && !strings.Contains(m[3], "# skip") && !strings.Contains(m[3], "# TODO") {
			passed[m[2]] = m[1] == "ok"
			if titles != nil {
				titles[m[2]] = m[3]
			}
		}
	}
	os.RemoveAll(filepath.Join(s.work, "trash", how, "trash directory."+name))
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return passed, errors.New("it took too long")
	case errors.As(err, &exit) && len(passed) == 0:
		text := strings.TrimSpace(stderr.String() + stdout.String())
		return passed, fmt.Errorf("it ended with %v: %s", err, text[:min(len(text), 200)])
	}
	return passed, nil
}

// kind is how a test came out that passes with git.
type kind string

const (
	equal  kind = "the same"
	stated kind = "said"
	silent kind = "silent"
)

// tests returns the kind of each test, by number, and what was said of it first.
func (r *result) tests() (map[string]kind, map[string]said) {
	first := map[string]said{}
	for _, one := range r.said {
		if old, ok := first[one.Test]; !ok || aside(old.Rule) && !aside(one.Rule) {
			first[one.Test] = one
		}
	}
	kinds := map[string]kind{}
	for n, ok := range r.native {
		if !ok {
			continue
		}
		through, ran := r.through[n]
		switch _, spoke := first[n]; {
		case !ran:
		case spoke && !aside(first[n].Rule), spoke && !through:
			kinds[n] = stated
		case through:
			kinds[n] = equal
		default:
			kinds[n] = silent
		}
	}
	return kinds, first
}

// aside reports whether the rule is none of the wrapper's: it counts where a test
// fails that nothing else was said of.
func aside(rule string) bool { return rule == "home" || rule == "suite" }

func (r *result) line() string {
	if r.why != "" && len(r.through) == 0 {
		return r.file + ": not compared: " + r.why
	}
	kinds, _ := r.tests()
	n := map[kind]int{}
	for _, k := range kinds {
		n[k]++
	}
	return fmt.Sprintf("%s: %d the same, %d said, %d silent %s", r.file, n[equal], n[stated], n[silent], r.why)
}

// tally is what came of all files.
type tally struct {
	files   int
	total   map[kind]int
	reasons map[string]int            // tests, by rule
	texts   map[string]map[string]int // tests, by rule and what was said
	silents []string                  // tests that differ without a word
	apart   []string                  // files that were not compared
}

// judge writes the tables.
func (s *suite) judge() error {
	var report io.Writer = io.Discard
	if s.report != "" {
		f, err := os.Create(s.report)
		if err != nil {
			return err
		}
		defer f.Close()
		report = f
	}
	t := tally{total: map[kind]int{}, reasons: map[string]int{}, texts: map[string]map[string]int{}}
	for i := range s.results {
		t.add(&s.results[i], report)
	}
	text := t.table()
	fmt.Print(text)
	for _, f := range t.apart {
		fmt.Println("not compared:", f)
	}
	if s.update {
		if err := document(text); err != nil {
			return err
		}
	}
	if len(t.silents) > 0 {
		return fmt.Errorf("%d tests differ without a word:\n%s", len(t.silents), strings.Join(t.silents, "\n"))
	}
	return nil
}

// add counts the tests of r, and reports each that differs, a line a test.
func (t *tally) add(r *result, report io.Writer) {
	if len(r.through) == 0 {
		t.apart = append(t.apart, r.file+" ("+r.why+")")
		return
	}
	t.files++
	kinds, first := r.tests()
	for _, n := range slices.SortedFunc(maps.Keys(kinds), byNumber) {
		k := kinds[n]
		t.total[k]++
		if k == equal {
			continue
		}
		one := first[n]
		state := "passes"
		if !r.through[n] {
			state = "fails"
		}
		fmt.Fprintf(report, "%s.%s\t%s\t%s\t%s\t%s\tgit %s\t%s\n", r.file, n, k, state, one.Rule, one.Text, strings.Join(one.Args, " "), r.titles[n])
		if k == silent {
			t.silents = append(t.silents, r.file+"."+n+" "+r.titles[n])
			continue
		}
		t.reasons[one.Rule]++
		if t.texts[one.Rule] == nil {
			t.texts[one.Rule] = map[string]int{}
		}
		t.texts[one.Rule][general(one.Text)]++
	}
}

// table returns a sentence with the sums, and a line for each rule.
func (t *tally) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d files of git's own tests, %d tests that pass with git itself: %d come out the same through the wrapper, of %d a call is refused or has a note, %d differ without a word.\n\n",
		t.files, t.total[equal]+t.total[stated]+t.total[silent], t.total[equal], t.total[stated], t.total[silent])
	b.WriteString("| rule | tests | what is said most |\n| --- | --- | --- |\n")
	for _, rule := range mostFirst(t.reasons) {
		texts := mostFirst(t.texts[rule])
		var most []string
		for _, text := range texts[:min(len(texts), 3)] {
			most = append(most, fmt.Sprintf("%s (%d)", strings.ReplaceAll(text, "|", `\|`), t.texts[rule][text]))
		}
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", rule, t.reasons[rule], strings.Join(most, "; "))
	}
	return b.String()
}

// mostFirst returns the names in count, those that count most first.
func mostFirst(count map[string]int) []string {
	return slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], strings.Compare(a, b))
	})
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x - y
}

var quoted = regexp.MustCompile(`"[^"]*"`)

// general is what is said, without its advice, and without what it is said of but
// for flags and variables.
func general(text string) string {
	text, _, _ = strings.Cut(text, "; instead: ")
	return quoted.ReplaceAllStringFunc(text, func(q string) string {
		if strings.HasPrefix(q, `"-`) || strings.HasPrefix(q, `"GIT_`) || regexp.MustCompile(`^"[a-z][a-z-]+"$`).MatchString(q) {
			return q
		}
		return "…"
	})
}

// document puts the text between its marks in docs/wrappers.md.
func document(text string) error {
	const file, begin, end = "docs/wrappers.md", "<!-- tests of git -->\n", "<!-- end of tests of git -->\n"
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no %q and %q", file, begin, end)
	}
	return os.WriteFile(file, []byte(head+begin+text+end+tail), 0o644)
}
