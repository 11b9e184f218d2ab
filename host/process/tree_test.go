//go:build linux

package process_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// A tree of every kind of process that tries to stay: in the background, in a
// session of its own, orphaned on purpose, deaf to SIGTERM.
const stubbornTree = `
trap '' TERM
sleep 1000 &
setsid sh -c 'trap "" TERM HUP; sleep 1000' &
(setsid sh -c '(sleep 1000 &) ; exec sleep 1000' >/dev/null 2>&1 &)
nohup sleep 1000 >/dev/null 2>&1 &
echo partial
echo oops >&2
`

func TestTimeout(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  bool
	}{{"confined", false}, {"unconfined", true}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRunner(t, process.Config{})
			dir, mark := t.TempDir(), newMark()
			c := shell(dir, stubbornTree+"wait; sleep 1000")
			c.Env = append(c.Env, "MARK="+mark)
			c.Confine.Off = tt.off
			var stdout, stderr bytes.Buffer
			c.Stdout, c.Stderr = &stdout, &stderr
			const limit = 300 * time.Millisecond
			var (
				exit process.Exit
				err  error
				late = time.Hour
			)
			// A machine that is busy with other things is late by itself:
			// then it is tried again. So it is where the program had no time to say
			// anything.
			for try := 0; try < 4 && (late > 500*time.Millisecond || stderr.Len() == 0); try++ {
				stdout.Reset()
				stderr.Reset()
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				exit, err = r.Run(ctx, c)
				cancel()
				late = time.Since(start) - limit
			}
			if t.Logf("%v after the limit", late); late > 500*time.Millisecond {
				t.Errorf("answered %v after the limit, want half a second at most", late)
			}
			if codeOf(err) != fault.Timeout {
				t.Errorf("error %v, want TIMEOUT", err)
			}
			if exit.Signal != syscall.SIGKILL {
				t.Errorf("exit %+v, want SIGKILL", exit)
			}
			if stdout.String() != "partial\n" || stderr.String() != "oops\n" {
				t.Errorf("partial output %q and %q was not kept", stdout.String(), stderr.String())
			}
			if left := alive(t, mark); len(left) > 0 {
				t.Errorf("still alive: %q", left)
			}
		})
	}
}

// A child that heeds SIGTERM has its Grace to clean up in.
func TestGrace(t *testing.T) {
	r := newRunner(t, process.Config{})
	c := shell(t.TempDir(), `trap 'echo cleaned up; exit 7' TERM; echo ready; while :; do sleep 1000 & wait; done`)
	c.Grace = time.Minute
	u := begin(t, r, c)
	u.next()
	u.cancel()
	if got := u.next(); got != "cleaned up" {
		t.Errorf("got %q", got)
	}
	if exit, err := u.wait(); codeOf(err) != fault.Aborted || exit.Code != 7 {
		t.Errorf("exit %+v, error %v, want ABORTED after code 7", exit, err)
	}
}

// What is left when the child ends by itself ends with it, and its output is
// there though others hold the pipe open.
func TestDaemonisedGrandchild(t *testing.T) {
	r := newRunner(t, process.Config{})
	dir, mark := t.TempDir(), newMark()
	c := shell(dir, stubbornTree+"(setsid sh -c 'echo from afar; exec sleep 1000' &) ; exit 5")
	c.Env = append(c.Env, "MARK="+mark)
	var out bytes.Buffer
	c.Stdout = &out
	exit, err := r.Run(patient(t), c)
	if err != nil || exit.Code != 5 {
		t.Fatalf("exit %+v, error %v", exit, err)
	}
	if !strings.Contains(out.String(), "partial\n") {
		t.Errorf("output %q", out.String())
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}
}

// Processes that do nothing but fork and end are never where the list of
// processes said they were.
func TestForkRacers(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  bool
	}{{"confined", false}, {"unconfined", true}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRunner(t, process.Config{})
			mark := newMark()
			c := shell(t.TempDir(), `
				racer() { racer & }
				for i in 1 2 3 4; do
					(racer)
					setsid sh -c 'racer() { racer & }; racer' >/dev/null 2>&1
				done
				echo racing
				exec sleep 1000`)
			c.Env = append(c.Env, "MARK="+mark)
			c.Confine.Off = tt.off
			u := begin(t, r, c)
			u.next()
			start := time.Now()
			u.cancel()
			if _, err := u.wait(); codeOf(err) != fault.Aborted {
				t.Errorf("error %v, want ABORTED", err)
			}
			t.Logf("killed in %v", time.Since(start))
			if left := alive(t, mark); len(left) > 0 {
				t.Errorf("still alive: %q", left)
			}
		})
	}
}

func TestTimeoutsLeaveNothing(t *testing.T) {
	const ready = 3
	r := newRunner(t, process.Config{Ready: ready})
	dir, mark := t.TempDir(), newMark()
	c := shell(dir, stubbornTree+"wait; sleep 1000")
	c.Env = append(c.Env, "MARK="+mark)
	c.Grace = time.Millisecond
	run := func() {
		var out bytes.Buffer
		c.Stdout = &out
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Millisecond)
		defer cancel()
		if _, err := r.Run(ctx, c); codeOf(err) != fault.Timeout {
			t.Fatalf("error %v, want TIMEOUT", err)
		}
	}
	for range 10 {
		run()
	}
	before := count(t)
	for range 100 {
		run()
	}
	after := count(t)
	t.Logf("before %+v, after %+v", before, after)
	if after.fds > before.fds || after.goroutines > before.goroutines {
		t.Errorf("descriptors and goroutines grew: %+v, then %+v", before, after)
	}
	if after.children > ready || after.childFDs > before.childFDs+ready { // each may have the filter of its next run
		t.Errorf("supervisors or their descriptors grew: %+v, then %+v", before, after)
	}
	if after.childThreads > before.childThreads+3 {
		t.Errorf("threads of supervisors grew: %+v, then %+v", before, after)
	}
	if after.childKiB > before.childKiB+16<<10 {
		t.Errorf("memory of supervisors grew: %+v, then %+v", before, after)
	}
	if after.heap > before.heap+1<<20 {
		t.Errorf("memory grew: %+v, then %+v", before, after)
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}
}

func TestDaemonKilled(t *testing.T) {
	t.Run("confined", func(t *testing.T) { testDaemonKilled(t, "", "") })
	t.Run("unconfined", func(t *testing.T) { testDaemonKilled(t, "1", "") })
	t.Run("supervisor stopped", func(t *testing.T) { testDaemonKilled(t, "1", "kill -STOP $PPID") })
}

func testDaemonKilled(t *testing.T, off, before string) {
	mark := newMark()
	d := daemon(t, mark, `
		setsid sleep 1000 & a=$!
		sleep 1000 & b=$!
		trap '' TERM
		`+before+`
		echo $PPID $$ $a $b
		wait; sleep 1000`, t.TempDir())
	d.Env = append(d.Env, "OFF="+off, "MOST=seccomp")
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	pids := numbers(t, lines.Text())
	if err := d.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Wait()
	if len(pids) != 4 {
		t.Fatalf("processes %v, want 4", pids)
	}
	waitGone(t, pids...)
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}
}

func TestSupervisorKilled(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	mark := newMark()
	c := shell(t.TempDir(), `
		sleep 1000 & a=$!
		sh -c 'trap "" TERM; sleep 1000; sleep 1000' & b=$!
		echo $PPID $$ $a $b
		wait`)
	c.Env = append(c.Env, "MARK="+mark)
	u := begin(t, r, c)
	pids := numbers(t, u.next())
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := u.wait(); codeOf(err) != fault.Internal {
		t.Errorf("error %v, want INTERNAL", err)
	}
	waitGone(t, pids...)
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}

	// Another supervisor takes its place.
	var again bytes.Buffer
	c = shell(t.TempDir(), "echo again")
	c.Stdout = &again
	if _, err := r.Run(patient(t), c); err != nil || again.String() != "again\n" {
		t.Errorf("the next run: %q, %v", again.String(), err)
	}
}

// A supervisor that is killed while it holds no run costs no run.
func TestIdleSupervisorKilled(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	for range 5 {
		u := begin(t, r, shell(t.TempDir(), "echo $PPID"))
		pid := numbers(t, u.next())[0]
		if _, err := u.wait(); err != nil {
			t.Fatal(err)
		}
		unix.Kill(pid, unix.SIGKILL)
		waitGone(t, pid)
	}
}

// Signals reach the child and its group, and how it ended is told, also when
// this process was started with them ignored, as a shell does for `toold &`.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			r := newRunner(t, process.Config{Ready: 1})
			// The shell waits for its pipe, whose processes are in its group.
			c := shell(t.TempDir(), `echo ready | cat; sleep 1000 | sleep 1000`)
			signals := make(chan os.Signal, 1)
			c.Signals = signals
			u := begin(t, r, c)
			u.next()
			signals <- sig
			if exit, err := u.wait(); err != nil || exit.Signal != sig || exit.Code != 128+int(sig) {
				t.Errorf("exit %+v, error %v", exit, err)
			}
		})
	}
}

func TestSignalsIgnoredByTheDaemon(t *testing.T) {
	d := daemon(t, newMark(), `kill -INT $$; echo survived`, t.TempDir())
	d.Args = append([]string{"/bin/sh", "-c", `trap '' INT HUP TSTP; exec "$0" "$@"`, d.Path}, d.Args[1:]...)
	d.Path = "/bin/sh"
	out, err := d.Output()
	if err != nil || string(out) != "ended 130 interrupt <nil>\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// What a daemon was started with and did not mark reaches no child.
func TestInheritedDescriptors(t *testing.T) {
	d := daemon(t, newMark(), `ls /proc/self/fd; ls -l /proc/self/fd >&2`, t.TempDir())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	d.ExtraFiles = []*os.File{r, w, r, w} // 3 to 6, without close-on-exec
	out, err := d.Output()
	// 3 is the folder that ls itself reads.
	if err != nil || !strings.HasPrefix(string(out), "0\n1\n2\n3\n") || strings.HasPrefix(string(out), "0\n1\n2\n3\n4\n") {
		t.Errorf("%s, %v", out, err)
	}
}

// A service manager that stops toold sends SIGTERM to its supervisors too.
// Calls finish, so they stay.
func TestSupervisorHearsNoSignals(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	u := begin(t, r, shell(dir, "echo $PPID; until [ -e go ]; do sleep 0.01; done; echo $PPID"))
	first := u.next()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGTSTP} {
		must(t, syscall.Kill(numbers(t, first)[0], sig))
	}
	must(t, os.WriteFile(dir+"/go", nil, 0o644))
	if second := u.next(); second != first {
		t.Errorf("parent %s, then %s", first, second)
	}
	if exit, err := u.wait(); err != nil || exit.Code != 0 {
		t.Errorf("exit %+v, error %v", exit, err)
	}
}

// The child ends with its supervisor also where the daemon cannot see to it.
func TestSupervisorKilledBesideDaemon(t *testing.T) {
	d := daemon(t, newMark(), `trap '' TERM; echo $PPID $$; while :; do sleep 1000; done`, t.TempDir())
	d.Env = append(d.Env, "MOST=seccomp")
	out, err := d.StdoutPipe()
	must(t, err)
	must(t, d.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	pids := numbers(t, lines.Text())
	must(t, d.Process.Signal(syscall.SIGSTOP))
	must(t, syscall.Kill(pids[0], syscall.SIGKILL))
	waitGone(t, pids[1])
	must(t, d.Process.Kill())
	d.Wait()
}

func TestNoCoreFiles(t *testing.T) {
	d := daemon(t, newMark(), `ulimit -c; ulimit -H -c`, t.TempDir())
	d.Args = append([]string{"/bin/sh", "-c", `ulimit -c unlimited && exec "$0" "$@"`, d.Path}, d.Args[1:]...)
	d.Path = "/bin/sh"
	out, err := d.Output()
	if err != nil {
		t.Skip("core files cannot be allowed here")
	}
	if !strings.HasPrefix(string(out), "0\n0\n") {
		t.Errorf("%s", out)
	}
}

// A daemon without privileges does all of it.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this is the case in all other tests")
	}
	dir, mark := t.TempDir(), newMark()
	must(t, os.Chown(dir, 65534, 65534))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	outside := t.TempDir() + "/made"
	run := func(off, script string) string {
		t.Helper()
		d := daemon(t, mark, script, dir)
		exe, err := os.ReadFile(d.Path)
		must(t, err)
		// The folder that go test builds in is closed to others.
		d.Path = dir + "/daemon"
		must(t, os.WriteFile(d.Path, exe, 0o755))
		d.Env = append(d.Env, "OFF="+off)
		d.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := d.Output()
		must(t, err)
		must(t, os.Remove(d.Path))
		if left := alive(t, mark); len(left) > 0 {
			t.Errorf("still alive: %q", left)
		}
		return string(out)
	}
	out := run("", stubbornTree+`echo > made; echo > `+outside+` || echo refused; kill -0 $PPID || echo safe; exit 4`)
	if !strings.Contains(out, "refused\n") || !strings.Contains(out, "safe\n") || !strings.HasSuffix(out, "ended 4 signal 0 <nil>\n") {
		t.Errorf("%s", out)
	}
	if _, err := os.Stat(dir + "/made"); err != nil {
		t.Error(err)
	}
	// Unconfined it is the same user as its supervisor, and still may not
	// look into it.
	out = run("1", stubbornTree+`cat /proc/$PPID/environ || echo closed; exit 4`)
	if !strings.Contains(out, "closed\n") || !strings.HasSuffix(out, "ended 4 signal 0 <nil>\n") {
		t.Errorf("%s", out)
	}
}
