package host_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// interactive starts a shell with job control at a terminal, where names are tools.
func interactive(t *testing.T, d *hosttest.Daemon, names ...string) *screen {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	bin, program := t.TempDir(), wrapperProgram(t)
	for _, name := range names {
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".inputrc"), []byte("set enable-bracketed-paste off\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openScreen(t)
	s.env = []string{"PATH=" + bin + ":/usr/bin:/bin", "PS1=$? at your service> ", "HISTFILE=", "HOME=" + home}
	s.start(d.Socket, d.Root, bash, "bash", "--norc", "--noprofile", "-i")
	s.expect(`0 at your service> $`)
	return s
}

// leave ends an interactive shell.
func (s *screen) leave() {
	s.t.Helper()
	s.expect(`at your service> $`)
	s.typed("exit 7\r")
	if code := s.ended(); code != 7 {
		s.t.Errorf("the shell's exit code is %d: %q", code, s.expect(""))
	}
}

// untilRaw waits until what is typed reaches the wrapper as it is.
func (s *screen) untilRaw() {
	for s.mode().Lflag&unix.ICANON != 0 {
		runtime.Gosched()
	}
}

// clear forgets what was shown.
func (s *screen) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = nil
}

// TestJobControl: Ctrl-Z at a wrapper stops its tool and gives the shell its terminal back;
// fg and bg continue both.
func TestJobControl(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	def := maps.Clone(shell)
	def["capabilities"] = M{"exec": []string{"/usr/bin/stty", "/usr/bin/sleep", "/usr/bin/cat", "/usr/bin/sed", "/bin/sh", "/bin/dash"}}
	d.Tool(t, "job", def, nil)

	t.Run("fg", func(t *testing.T) {
		s := interactive(t, d, "job")
		s.typed("job -c 'echo ready; read line; echo got $line; exit 5'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`(?s)\^Z.*Stopped.*148 at your service> `)
		s.clear()
		s.typed("jobs\r")
		s.expect(`Stopped +job -c`)
		s.typed("echo $((6*7))\r")
		s.expect(`[\r\n]42\r\n`)
		s.typed("fg\r")
		s.expect(`job -c 'echo ready`)
		s.typed("a line\r")
		s.expect(`got a line\r\n5 at your service> $`)
		s.leave()
	})
	t.Run("twice, of what its tool started", func(t *testing.T) {
		s := interactive(t, d, "job")
		s.typed("job -c 'sed -u s/^/got-/; echo then $?'\r")
		for _, word := range []string{"first", "second"} {
			s.typed(word + "\r")
			s.expect(`got-` + word + `\r\n`)
			s.typed("\x1a")
			s.expect(`148 at your service> $`)
			s.clear()
			s.typed("fg\r")
			s.expect(`job -c 'sed -u`)
		}
		s.resize(40, 90)
		s.untilRaw() // else it is the end of what the wrapper reads
		s.typed("\x04")
		s.expect(`then 0\r\n0 at your service> $`)
		s.leave()
	})
	t.Run("bg", func(t *testing.T) {
		s := interactive(t, d, "job")
		s.typed("job -c 'echo ready; read a; echo on with $a; read b; echo end with $b'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		s.typed("bg; echo $((6*7))\r") // it waits for what is typed, as the shell does
		s.expect(`[\r\n]42\r\n.*0 at your service> $`)
		s.typed("jobs\r")
		s.expect(`(?s)Running +job -c.*0 at your service> $`)
		s.clear()
		s.typed("fg\r")
		s.expect(`job -c 'echo ready[^\n]*\n$`)
		s.typed("one\r")
		s.expect(`on with one`)
		s.resize(33, 99)
		s.typed("two\r")
		s.expect(`end with two\r\n0 at your service> $`)
		s.leave()
	})
	t.Run("bg to its end", func(t *testing.T) {
		s := interactive(t, d, "job")
		fifo := filepath.Join(d.Root, "go-on")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(fifo)
		s.typed("job -c 'echo ready; read x < go-on; echo background $x; exit 3'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		s.typed("bg\r")
		s.expect(`0 at your service> $`)
		if err := os.WriteFile(fifo, []byte("work\n"), 0); err != nil {
			t.Fatal(err)
		}
		s.expect(`background work`)
		s.typed("wait %1; echo it was $?\r")
		s.expect(`it was 3`)
		s.leave()
	})
	t.Run("interrupted and ended", func(t *testing.T) {
		s := interactive(t, d, "job")
		s.typed("job -c 'echo ready; read x'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		s.typed("fg\r")
		s.expect(`job -c 'echo ready; read x'`)
		s.untilRaw() // until then the shell may take it
		s.typed("\x03")
		s.expect(`130 at your service> $`)
		s.clear()
		s.typed("job -c 'echo ready; read x'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		s.typed("kill -INT %1; fg\r") // it is interrupted while it is stopped
		s.expect(`130 at your service> $`)
		s.clear()
		s.typed("job -c 'echo ready; read x'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		// wait answers 148 until bash has seen that its job goes on.
		s.typed("p=$(jobs -p); kill %1; while wait $p; c=$?; [ $c = 148 ]; do :; done; echo it was $c\r")
		s.expect(`it was 143`)
		s.leave()
	})
	// From elsewhere, as by kill.
	t.Run("by a signal", func(t *testing.T) {
		s := interactive(t, d, "job")
		s.typed("job -c 'echo ready; read line; echo got $line'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		s.typed("echo pid-$(jobs -p)-; fg\r")
		m := regexp.MustCompile(`(?s)pid-(\d+)-.*job -c`).FindStringSubmatch(s.expect(`(?s)pid-\d+-.*job -c 'echo ready`))
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		for { // what continues it takes a stop back that comes before
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				t.Fatal(err)
			}
			if state := b[bytes.LastIndexByte(b, ')')+2]; state != 'T' {
				break
			}
			runtime.Gosched()
		}
		if err := syscall.Kill(pid, syscall.SIGTSTP); err != nil {
			t.Fatal(err)
		}
		s.expect(`(?s)Stopped.*148 at your service> $`)
		s.clear()
		s.typed("fg\r")
		s.expect(`job -c 'echo ready`)
		s.typed("it\r")
		s.expect(`got it`)
		s.leave()
	})
	// While the wrapper is stopped its terminal is as it was, and raw again after; dash,
	// unlike bash, does nothing for that.
	t.Run("modes", func(t *testing.T) {
		bin := t.TempDir()
		if err := os.Symlink(wrapperProgram(t), filepath.Join(bin, "job")); err != nil {
			t.Fatal(err)
		}
		s := openScreen(t)
		s.env = []string{"PATH=" + bin, "PS1=at your service> "}
		s.start(d.Socket, d.Root, "/bin/dash", "dash", "-i")
		s.expect(`at your service> $`)
		s.typed("job -c 'echo ready; read line; echo got $line'\r")
		s.expect(`[\r\n]ready\r\n`)
		if s.mode().Lflag&unix.ICANON != 0 {
			t.Error("the terminal is not raw")
		}
		s.clear()
		s.typed("\x1a")
		s.expect(`at your service> $`)
		if m := s.mode(); m != s.before {
			t.Errorf("the terminal of a stopped wrapper is %+v, and was %+v", m, s.before)
		}
		s.resize(40, 90)
		s.typed("fg\r")
		s.expect(`job -c`)
		s.typed("it\r")
		s.expect(`got it`)
		s.leave()
	})
	// Where no shell could continue it, nothing is stopped.
	t.Run("without a shell", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, wrapperProgram(t), "job", "-c", `echo ready; read line; echo got $line`)
		s.expect(`ready`)
		s.typed("\x1aline\r")
		s.expect(`got line`)
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
	// The time of the call goes on, and its end ends what is stopped.
	t.Run("time is over", func(t *testing.T) {
		s, logged := interactive(t, d, "job"), len(d.Logs())
		s.typed("TOOL_TIMEOUT=1 job -c 'echo ready; read line'\r")
		s.expect(`[\r\n]ready\r\n`)
		s.typed("\x1a")
		s.expect(`148 at your service> $`)
		s.clear()
		d.AwaitLog(t, logged, "TIMEOUT")
		s.typed("fg\r")
		s.expect(`124 at your service> $`)
		s.leave()
	})
}
