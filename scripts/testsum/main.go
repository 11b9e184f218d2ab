// Command testsum runs `go test -json ARGS...` and prints what a person wants
// of it: a line for each package, everything that a failed test said, and at
// the end the totals, the skipped tests with their reasons and the failed ones
// with the command that runs each again. It exits as go test did.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// event is a line of `go test -json`, as `go doc test2json` has it.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

type key struct{ pkg, test string }

// report is what has been seen so far.
type report struct {
	out      io.Writer
	output   map[key][]string
	passed   int
	packages int
	untested int
	failed   []key
	skipped  []key
	broken   []string // packages that failed outside of any test
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: testsum go test -json ...")
		return 2
	}
	start := time.Now()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "testsum:", err)
		return 2
	}
	// go test gets the terminal's Ctrl-C itself; we stay to read its end.
	signal.Ignore(syscall.SIGINT)

	r := &report{out: stdout, output: map[key][]string{}}
	lines := bufio.NewReader(pipe)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 {
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				stdout.Write(line)
			}
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	r.close(time.Since(start))
	if err != nil {
		return max(cmd.ProcessState.ExitCode(), 1)
	}
	return 0
}

func (r *report) add(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output[k] = append(r.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageDone(e)
			return
		}
		switch e.Action {
		case "pass":
			if !strings.Contains(e.Test, "/") {
				r.passed++
			}
			delete(r.output, k)
		case "skip":
			r.skipped = append(r.skipped, k)
		case "fail":
			r.failed = append(r.failed, k)
			fmt.Fprint(r.out, strings.Join(r.output[k], ""))
		}
	}
}

func (r *report) packageDone(e event) {
	k := key{e.Package, ""}
	switch e.Action {
	case "skip":
		r.untested++
	case "pass":
		r.packages++
		fmt.Fprintf(r.out, "ok    %-50s %6.1f s\n", e.Package, e.Elapsed)
	case "fail":
		r.packages++
		fmt.Fprintf(r.out, "FAIL  %-50s %6.1f s\n", e.Package, e.Elapsed)
		named := false
		for _, f := range r.failed {
			named = named || f.pkg == e.Package
		}
		if !named {
			r.broken = append(r.broken, e.Package)
			// A panic or os.Exit leaves tests that never ended: what they
			// said is all there is to go by.
			for o, out := range r.output {
				if o.pkg == e.Package && o.test != "" {
					fmt.Fprint(r.out, strings.Join(out, ""))
				}
			}
			fmt.Fprint(r.out, strings.Join(r.output[k], ""))
		}
	}
	delete(r.output, k)
}

// reason finds the text of t.Skip in what a skipped test printed:
// "    file_test.go:12: text".
var reason = regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: (.*)$`)

func (r *report) close(took time.Duration) {
	fmt.Fprintf(r.out, "\n%d tests passed, %d failed, %d skipped in %d packages, in %s\n",
		r.passed, len(r.failed), len(r.skipped), r.packages, took.Round(100*time.Millisecond))
	for _, k := range r.skipped {
		why := "no reason given"
		if m := reason.FindStringSubmatch(strings.Join(r.output[k], "")); m != nil {
			why = m[1]
		}
		fmt.Fprintf(r.out, "  skipped %s: %s\n", k.test, why)
	}
	for _, k := range r.failed {
		if strings.Contains(k.test, "/") {
			continue // its parent failed too, and names it
		}
		fmt.Fprintf(r.out, "  FAILED  go test %s -run '^%s$'\n", k.pkg, k.test)
	}
	for _, p := range r.broken {
		fmt.Fprintf(r.out, "  FAILED  go test %s\n", p)
	}
}
