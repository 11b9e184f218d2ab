package deploy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// machine is a fresh Debian in a container, with the package or without.
type machine struct {
	*engine
	name    string
	systemd bool
}

const (
	packageAdmin  = "/var/lib/toold/0/admin.sock"
	packageSocket = "/run/toold/sockets/tool-0.sock"
)

// systemdPackages are what a small Debian needs for systemd to be process 1.
var systemdPackages = []string{"systemd", "systemd-sysv", "dbus"}

// newMachine starts a Debian without network, with the packages /1.deb and /2.deb, where
// systemd is process 1, or nothing is.
func newMachine(t *testing.T, e *engine, debs string, systemd bool) *machine {
	t.Helper()
	if systemd {
		return startMachine(t, e, "systemd", debian(t, "systemd", systemdPackages...), debs, true)
	}
	return startMachine(t, e, "plain", debian(t, "debian"), debs, false)
}

// startMachine starts the Debian of an archive without network, with the folder debs at
// /debs and further rights.
func startMachine(t *testing.T, e *engine, name, archive, debs string, systemd bool, rights ...string) *machine {
	t.Helper()
	m := &machine{&engine{t: t, dir: e.dir, args: e.args}, name, systemd}
	start := []string{"sleep", "infinity"}
	if systemd {
		start = []string{"/sbin/init"}
		// For what systemd does to its services: mounts and namespaces.
		rights = append(rights, "--systemd=always", "--cap-add", "SYS_ADMIN", "--security-opt", "unmask=ALL")
	}
	root := filepath.Join(e.dir, m.name)
	output(t, "mkdir", root)
	output(t, "tar", "-C", root, "-xf", archive)
	m.run(slices.Concat([]string{"run", "-d", "--name", m.name, "--network", "none", "--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096", "-v", debs + ":/debs:ro"},
		rights, []string{"--rootfs", root}, start)...)
	if systemd {
		// It ends when systemd has come up, whatever it thinks of that.
		out, _ := m.try(nil, "exec", m.name, "sh", "-c", "until [ -S /run/dbus/system_bus_socket ]; do sleep 0.1; done; systemctl is-system-running --wait")
		if !strings.Contains(out, "running") && !strings.Contains(out, "degraded") {
			t.Fatalf("systemd does not start: %s\n%s", out, m.run("logs", m.name))
		}
	}
	t.Cleanup(func() { m.try(nil, "rm", "-fi", "-t", "0", m.name) })
	return m
}

// do runs a program as root and returns what it prints.
func (m *machine) do(args ...string) string {
	m.t.Helper()
	return m.run(slices.Concat([]string{"exec", "-e", "TOOL_SOCKET=" + packageSocket, m.name}, args)...)
}

func (m *machine) sh(script string) string {
	m.t.Helper()
	return m.do("sh", "-ec", script)
}

// toolctl runs as the daemon's user.
func (m *machine) toolctl(args ...string) string {
	m.t.Helper()
	return m.do(slices.Concat([]string{"runuser", "-u", "toold", "--", "toolctl", "--admin", packageAdmin, "--socket", packageSocket}, args)...)
}

// process is the number of the daemon that serves.
func (m *machine) process() int {
	m.t.Helper()
	var list []struct{ PID int }
	if err := json.Unmarshal([]byte(m.toolctl("instances", "--json")), &list); err != nil || len(list) != 1 || list[0].PID == 0 {
		m.t.Fatalf("instances: %v, %v", list, err)
	}
	return list[0].PID
}

// running is a program in the machine that is spoken with.
type running struct {
	m     *machine
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func (m *machine) start(args ...string) *running {
	m.t.Helper()
	cmd := exec.Command("podman", slices.Concat(m.args, []string{"exec", "-i", "-e", "TOOL_SOCKET=" + packageSocket, m.name}, args)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	return &running{m, cmd, in, bufio.NewScanner(out)}
}

// expect reads lines until one begins with want.
func (r *running) expect(want string) {
	r.m.t.Helper()
	var seen []string
	for r.lines.Scan() {
		seen = append(seen, r.lines.Text())
		if strings.HasPrefix(r.lines.Text(), want) {
			return
		}
	}
	r.m.t.Fatalf("no %q in\n%s", want, strings.Join(seen, "\n"))
}

// end closes the program's input, and waits for its end, which must be a good one.
func (r *running) end() {
	r.m.t.Helper()
	r.in.Close()
	for r.lines.Scan() {
	}
	if err := r.cmd.Wait(); err != nil {
		r.m.t.Errorf("%v: %v", r.cmd.Args[len(r.cmd.Args)-3:], err)
	}
}

// hold is a call that runs until end.
func (m *machine) hold() *running {
	m.t.Helper()
	r := m.start("sh", "-c", "cd /workspace && exec tool-client hold")
	io.WriteString(r.in, "held\n")
	r.expect("held")
	return r
}

// callers are two that call without a pause until end, and say what failed.
func (m *machine) callers() (end func()) {
	m.t.Helper()
	const loop = `cd /workspace; n=0; echo begun; while [ ! -e /tmp/enough ]; do
		n=$((n+1)); out=$(tool-client echo $n 2>&1) && [ "$out" = $n ] || echo "FAIL $n: $out"; done; echo made $n`
	m.do("rm", "-f", "/tmp/enough")
	var all []*running
	for range 2 {
		r := m.start("sh", "-c", loop)
		r.expect("begun")
		all = append(all, r)
	}
	return func() {
		m.t.Helper()
		m.do("touch", "/tmp/enough")
		for _, r := range all {
			made := ""
			for r.lines.Scan() {
				if made = r.lines.Text(); strings.HasPrefix(made, "FAIL") {
					m.t.Errorf("a call fails: %s", made)
				}
			}
			if made == "made 1" || !strings.HasPrefix(made, "made ") {
				m.t.Errorf("the caller ended with %q", made)
			}
			r.cmd.Wait()
		}
	}
}

// serve starts the daemon as docs/install.md says and waits until it serves.
func (m *machine) serve() {
	m.t.Helper()
	if m.systemd {
		m.sh("systemctl enable --now toold.socket toold-admin.socket 2>&1")
		if out, _ := m.try(nil, "exec", m.name, "systemctl", "is-active", "toold.service"); strings.TrimSpace(out) != "inactive" {
			m.t.Errorf("before a call the service is %s", out)
		}
	} else {
		unit, err := os.ReadFile("systemd/toold.service")
		if err != nil {
			m.t.Fatal(err)
		}
		args := []string{"runuser", "-u", "toold", "--", "env"}
		for _, v := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(string(unit), -1) {
			args = append(args, v[1])
		}
		r := m.start(append(args, "/usr/bin/toold")...)
		r.expect("ready ")
		go func() { // it outlives this: nobody waits for more
			for r.lines.Scan() {
			}
			r.cmd.Wait()
		}()
	}
	if out := m.sh("cd /workspace; tool-client echo serves"); out != "serves\n" {
		m.t.Errorf("the first call answers %q", out)
	}
}

// pack makes the Debian package of what is checked out, unless the variable TOOLD_PACKAGE
// names one.
func (e *engine) pack() string {
	e.t.Helper()
	if made := os.Getenv("TOOLD_PACKAGE"); strings.HasSuffix(made, ".deb") {
		return made
	}
	cmd := exec.Command("go", "run", "./scripts/dist", "-platforms", "linux/"+runtime.GOARCH, "-version", "0.1.0", "-compression", "none", filepath.Join(e.dir, "dist"))
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("make the package: %v\n%s", err, out)
	}
	return filepath.Join(e.dir, "dist", "toold_0.1.0_"+runtime.GOARCH+".deb")
}

// TestPackage installs, upgrades, removes and purges the Debian package on fresh
// machines, while callers call.
func TestPackage(t *testing.T) {
	e := newEngine(t, "TOOLD_PACKAGE", "make test-package")
	debs := filepath.Join(e.dir, "debs")
	output(t, "mkdir", debs)
	made := e.pack()
	// The next version differs in its number.
	next := filepath.Join(e.dir, "next")
	output(t, "cp", made, filepath.Join(debs, "1.deb"))
	output(t, "dpkg-deb", "-R", made, next)
	output(t, "sed", "-i", "s/^Version: .*/Version: 0.2.0/", filepath.Join(next, "DEBIAN/control"))
	output(t, "dpkg-deb", "--root-owner-group", "-Znone", "--build", next, filepath.Join(debs, "2.deb"))

	for _, systemd := range []bool{false, true} {
		t.Run(map[bool]string{false: "Plain", true: "Systemd"}[systemd], func(t *testing.T) {
			m := newMachine(t, e, debs, systemd)
			out := m.do("dpkg", "-i", "/debs/1.deb")
			if strings.Contains(out, "no systemd runs here") == systemd {
				t.Errorf("it says of systemd:\n%s", out)
			}
			if got := m.sh("getent passwd toold | cut -d: -f6,7; stat -c '%n %U:%G %a' /var/lib/toold /run/toold/sockets /etc/toold/toold.json"); got !=
				"/var/lib/toold:/usr/sbin/nologin\n/var/lib/toold toold:toold 700\n/run/toold/sockets toold:toold 755\n/etc/toold/toold.json root:root 644\n" {
				t.Errorf("user and folders:\n%s", got)
			}
			if out := m.sh("toolctl tools add --tools /etc/toold/tools.d --yes git; ls /usr/share/man/man8 /usr/share/man/man1 /usr/share/bash-completion/completions"); !strings.Contains(out, "toold.8") ||
				!strings.Contains(out, "toolctl-tools-add.1") || !strings.Contains(out, "tool-client.1") {
				t.Errorf("documents:\n%s", out)
			}
			m.sh(`rm -r /etc/toold/tools.d/git; cd /etc/toold/tools.d; mkdir echo hold
				echo '{"binary":"/bin/echo"}' >echo/tool.json; echo '{"binary":"/bin/cat","stdin":true}' >hold/tool.json
				echo '{"roots":["/workspace"],"shutdown_grace":60}' >../toold.json; install -d -o toold /workspace`)
			m.serve()
			if systemd {
				m.checkService()
			}
			m.checkUpgrade()

			m.do("dpkg", "-r", "toold")
			left := m.sh("ls /usr/bin/toold /run/systemd/system/toold* 2>/dev/null || :; cat /etc/toold/toold.json; ls /etc/toold/tools.d /var/lib/toold/0/idempotency.db")
			if left != "{\"roots\":[\"/workspace\"],\"shutdown_grace\":60}\n/var/lib/toold/0/idempotency.db\n\n/etc/toold/tools.d:\necho\nhold\n" {
				t.Errorf("removal leaves\n%s", left)
			}
			if systemd {
				if out := m.sh("pidof toold || :; systemctl list-units --all --plain --no-legend 'toold*'"); out != "" {
					t.Errorf("after removal there are %s", out)
				}
			} else {
				m.sh("kill $(pidof toold); while pidof toold; do sleep 0.1; done")
			}
			m.do("dpkg", "-i", "/debs/2.deb")
			m.serve()
			if !systemd {
				m.sh("kill $(pidof toold); while pidof toold; do sleep 0.1; done")
			}
			m.do("dpkg", "-P", "toold")
			if out := m.sh("ls -d /etc/toold /var/lib/toold /run/toold /etc/systemd/system/*/toold* 2>/dev/null || :; getent passwd toold | cut -d: -f1"); out != "toold\n" {
				t.Errorf("purging leaves\n%s", out)
			}
		})
	}
}

// checkUpgrade installs the next version while a call runs and others are made.
func (m *machine) checkUpgrade() {
	before := m.process()
	held, end := m.hold(), m.callers()
	dpkg := m.start("dpkg", "-i", "/debs/2.deb")
	dpkg.expect("Setting up toold (0.2.0)")
	io.WriteString(held.in, "still\n")
	held.expect("still")
	held.end()
	dpkg.expect("toold ")
	dpkg.end()
	end()
	if after := m.process(); after == before {
		m.t.Errorf("process %d serves still", after)
	}
	if out := m.sh("cat /etc/toold/toold.json; dpkg-query -W toold"); !strings.Contains(out, `"shutdown_grace":60`) || !strings.Contains(out, "0.2.0") {
		m.t.Errorf("after the upgrade:\n%s", out)
	}
	if m.systemd {
		// systemd did not start the process that serves now, and waits for its calls all the same.
		m.checkRestart("after an upgrade")
	}
}

// checkRestart restarts the service while a call runs and others are made.
func (m *machine) checkRestart(when string) {
	m.t.Helper()
	before := m.process()
	held, end := m.hold(), m.callers()
	restart := m.start("sh", "-c", "systemctl restart --no-block toold; until [ \"$(systemctl is-active toold)\" = deactivating ]; do sleep 0.1; done; echo stopping; systemctl restart toold; echo restarted")
	restart.expect("stopping")
	io.WriteString(held.in, "still\n")
	held.expect("still")
	held.end()
	restart.expect("restarted")
	restart.end()
	end()
	if after := m.process(); after == before {
		m.t.Errorf("%s: process %d serves still", when, after)
	}
}

// checkService does with the service what operators do.
func (m *machine) checkService() {
	if out := m.sh("systemctl show -p ActiveState,MainPID toold.service"); !strings.Contains(out, "ActiveState=active") {
		m.t.Errorf("a call did not start the service: %s", out)
	}
	out, _ := m.try(nil, "exec", m.name, "runuser", "-u", "toold", "--", "toolctl", "--admin", packageAdmin, "--socket", packageSocket, "doctor")
	if !strings.Contains(out, `confined at the level "namespaces"`) {
		m.t.Errorf("the unit takes confinement from tools:\n%s", out)
	}
	m.sh("systemctl reload toold; journalctl -q -u toold -o cat | grep '\"reloaded\"'")
	// What is refused changes nothing.
	m.sh("cp -a /etc/toold/toold.json /tmp/; echo '{' >/etc/toold/toold.json; systemctl reload toold; cp -a /tmp/toold.json /etc/toold/; cd /workspace; tool-client echo on")
	m.checkRestart("at first")
	before := m.process()
	m.sh("kill -9 " + fmt.Sprint(before) + "; cd /workspace; tool-client echo again")
	if after := m.process(); after == before {
		m.t.Errorf("process %d was killed", after)
	}
}
