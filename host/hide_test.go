package host_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/hosttest"
)

// A binary reads nothing of what is the daemon's own, of another caller, or of
// any tool's secrets, but what it was given.
func TestBinariesDoNotReadTheDaemons(t *testing.T) {
	if confine.Confinement().ABI == 0 {
		t.Skip("there is no Landlock here")
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"secret": "secret-canary-71\n", "other": "other", "toold.json": `{"confine": "required", "confine_most": "seccomp", "identity": {"jwks": "` + filepath.Join(dir, "jwks.json") + `", "allow_uid": true}}`,
		"jwks.json": `{"keys": [{"kty": "oct", "kid": "k", "alg": "HS256", "k": "` + strings.Repeat("A", 43) + `"}]}`, "known_hosts": "", ".env": "TOKEN=env-canary-72\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := config.Load(filepath.Join(dir, "toold.json"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, c)
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin/cat", "/bin/ls"}}}, nil)
	d.Tool(t, "other", M{"binary": "/bin/true", "secrets": M{"X": M{"from": "file:" + secret, "env": "X"}}}, nil)
	waitState(t, d, "other", "ok") // whose secret is known by then
	own := filepath.Join(d.Config.State, "home", "another")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "hosts.yml"), []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(script string) *answer {
		return ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
	}
	for _, path := range []string{
		secret, filepath.Join(dir, "toold.json"), filepath.Join(dir, ".env"), filepath.Join(dir, "known_hosts"), filepath.Join(dir, "jwks.json"),
		filepath.Join(d.Config.State, "host.key"), filepath.Join(own, "hosts.yml"),
	} {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if a := sh("cat '" + path + "'"); a.ExitCode == 0 || !strings.Contains(a.Stderr, "Permission denied") {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if a := sh("ls '" + d.Config.State + "'"); a.ExitCode == 0 {
		t.Errorf("the state folder: %+v", a)
	}
	if a := sh("cat '" + filepath.Join(dir, "other") + "' && echo mine > \"$HOME/file\" && cat \"$HOME/file\" /etc/hostname > \"$TMPDIR/x\" && ls \"$HOME\""); a.ExitCode != 0 || a.Stdout != "otherfile\ntmp\n" {
		t.Errorf("what is no secret: %+v", a)
	}
}

// A binary reads no certificate of a module, but those of the system, and what the
// operator names to its own tool.
func TestBinariesDoNotReadCertificates(t *testing.T) {
	if confine.Confinement().ABI == 0 {
		t.Skip("there is no Landlock here")
	}
	dir := t.TempDir()
	ca, cert, named := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "named.pem")
	key := filepath.Join(dir, "key.pem")
	for _, path := range []string{ca, cert, named, key} {
		if err := os.WriteFile(path, []byte("certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// In namespaces the files are not there at all; below that they are hidden.
	for _, most := range []string{"", "seccomp", "landlock"} {
		t.Run("most "+most, func(t *testing.T) {
			d := hosttest.Start(t, config.Config{ConfineMost: most})
			def := M{"secrets": M{
				"a": M{"from": "file:" + ca, "tls": "ca", "host": "a.example"}, "b": M{"from": "file:" + cert, "tls": "cert", "host": "b.example"},
				"k": M{"from": "file:" + key, "tls": "key", "host": "b.example"},
				"c": M{"from": "file:" + named, "tls": "ca", "host": "c.example"}, "d": M{"from": "file:/etc/ssl/certs/ca-certificates.crt", "tls": "ca", "host": "d.example"},
			}}
			for k, v := range granted {
				def[k] = v
			}
			def["capabilities"] = M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{"a.example", "b.example", "c.example", "d.example"}}}
			d.Tool(t, "api", def, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
			waitState(t, d, "api", "ok")
			d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin/cat"}}, "environment": M{"GIT_SSL_CAINFO": named}}, nil)
			for path, readable := range map[string]bool{ca: false, cert: false, key: false, named: true, "/etc/ssl/certs/ca-certificates.crt": true} {
				if _, err := os.Stat(path); err != nil {
					continue // there are no authorities here
				}
				a := ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "cat '" + path + "' > /dev/null"}})
				if (a.ExitCode == 0) != readable {
					t.Errorf("%s can be read: %v, must be %v: %s", path, a.ExitCode == 0, readable, a.raw)
				}
			}
		})
	}
}

// What a tool runs has the daemon's user, and is not the operator for it.
func TestToolsDoNotReachTheAdminSocket(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("there is no /proc here")
	}
	// In namespaces there is nothing to connect to.
	hidden := hosttest.Start(t, config.Config{})
	hidden.Tool(t, "curl", M{"binary": curl, "capabilities": M{"network": []string{"unix:" + hidden.Config.Admin, "unix:" + hidden.Socket}}}, nil)
	for _, socket := range []string{hidden.Config.Admin, hidden.Socket} {
		if a := ask(t, hidden.Socket, M{"tool": "curl", "cwd": hidden.Root, "args": []string{"-s", "--max-time", "20", "--unix-socket", socket, "http://admin/status"}}); confinement(t, hidden) == "namespaces" && (a.ExitCode == 0 || strings.Contains(a.Stdout, "operator's")) {
			t.Errorf("%s: %+v", socket, a)
		}
	}

	d := hosttest.Start(t, config.Config{ConfineMost: "seccomp"})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{curl, "/bin", "/usr/bin"}, "network": []string{"unix:" + d.Config.Admin}}}, nil)
	ask := func(script string) *answer {
		return ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
	}
	get := curl + " -s --max-time 20 --unix-socket '" + d.Config.Admin + "' http://admin/status"
	if out, err := exec.Command("/bin/sh", "-c", get).Output(); err != nil || !strings.Contains(string(out), `"pid"`) {
		t.Errorf("the operator is told %q, %v", out, err)
	}
	for _, script := range []string{get, "setsid " + get, "(" + get + " > out &); until test -s out; do sleep 0.02; done; cat out"} {
		if a := ask(script); !strings.Contains(a.Stdout, "is the operator's") {
			t.Errorf("%s: %+v", script, a)
		}
	}
}

// confinement is the level at which d runs tools.
func confinement(t *testing.T, d *hosttest.Daemon) string {
	t.Helper()
	s, err := client.NewAdmin(d.Config.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Confinement
}

// callAsTool is the argument with which the test binary is a tool that calls the
// tool touch over another socket, and prints the answer.
const callAsTool = "call-as-tool"

func runCallAsTool(how, socket, cwd string) error {
	if how == "connect" { // and hand it on
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
			return err
		}
		return unix.Sendmsg(3, []byte("x"), unix.UnixRights(fd), nil, 0)
	}
	var conn net.Conn
	var err error
	if how == "itself" {
		conn, err = net.Dial("unix", socket)
	} else {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
		cmd := exec.Command("/proc/self/exe", callAsTool, "connect", socket, cwd)
		cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "pair")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		rights := make([]byte, 64)
		_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, 0)
		if err != nil {
			return err
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil {
			return err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return err
		}
		conn, err = net.FileConn(os.NewFile(uintptr(fds[0]), "handed on"))
		if err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(conn, `{"tool": "touch", "args": ["made"], "cwd": %q}`+"\n", cwd)
	_, err = io.Copy(os.Stdout, conn)
	return err
}

// A tool is not a caller: it would act with the rights of a socket that is not
// its own caller's.
func TestToolsDoNotCallTools(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	short, err := os.MkdirTemp("", "toold") // a socket's path is
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	d := hosttest.Start(t, config.Config{ConfineMost: "seccomp", Sockets: []config.Socket{{Path: filepath.Join(short, "b.sock"), Roots: []string{other}}}})
	d.Tool(t, "touch", M{"binary": "/usr/bin/touch"}, nil)
	d.Tool(t, "self", M{"binary": self, "capabilities": M{"network": []string{"unix:" + d.Config.Sockets[0].Path}}}, nil)
	for _, how := range []string{"itself", "by a process that has gone"} {
		a := ask(t, d.Socket, M{"tool": "self", "cwd": d.Root, "args": []string{callAsTool, how, d.Config.Sockets[0].Path, other}})
		if !strings.Contains(a.Stdout, "denied by rule caller") {
			t.Errorf("%s: %+v", how, a)
		}
	}
	if _, err := os.Stat(filepath.Join(other, "made")); err == nil {
		t.Error("a tool wrote beneath the roots of another socket")
	}
}

// What a call executed is in the journal of its session, and in the log where
// it was refused.
func TestProgramsAreJournaled(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "env", M{"binary": "/usr/bin/env", "capabilities": M{"exec": []string{"/usr/bin/id"}}}, nil)
	if a := ask(t, d.Socket, M{"tool": "env", "cwd": d.Root, "args": []string{"/usr/bin/id", "-u"}}); a.ExitCode != 0 {
		t.Fatalf("%s", a.raw)
	}
	if !hosttest.Judged() {
		t.Skip("programs are not judged here")
	}
	if a := ask(t, d.Socket, M{"tool": "env", "cwd": d.Root, "args": []string{"/usr/bin/whoami"}}); a.ExitCode != 126 || !strings.Contains(a.Stderr, "Permission denied") {
		t.Fatalf("%s", a.raw)
	}
	var journal string
	filepath.WalkDir(filepath.Join(d.Config.State, "sessions"), func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			journal += string(b)
		}
		return nil
	})
	for _, want := range []string{`"programs":[{"path":"/usr/bin/id","times":1}]`, `{"path":"/usr/bin/whoami","refused":"capabilities.exec does not grant it","times":1}`} {
		if !strings.Contains(journal, want) {
			t.Errorf("the journal has no %s: %s", want, journal)
		}
	}
	if log := d.Logs(); !strings.Contains(log, `"msg":"program refused"`) || !strings.Contains(log, "/usr/bin/whoami") {
		t.Errorf("the log does not tell: %s", log)
	}
}

// TestHomeIsMended: whatever a tool makes of its HOME, the next call of the same identity
// has one that can be used, with what is kept there; nobody else's is touched.
func TestHomeIsMended(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	sh := func(script string) *answer {
		return ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
	}
	outside, other := filepath.Join(d.Root, "outside"), filepath.Join(d.Config.State, "home", "sh", "another")
	if err := os.WriteFile(outside, []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(other, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{
		`chmod 0 "$HOME"`, `chmod 0 "$HOME/tmp"`, `chmod 0 "$HOME/tmp" "$HOME"`, `chmod 0500 "$HOME"`, `rmdir "$HOME/tmp"`,
		`rmdir "$HOME/tmp" && echo > "$HOME/tmp"`, `rmdir "$HOME/tmp" && mkfifo "$HOME/tmp"`, `rmdir "$HOME/tmp" && ln -s /nothing "$HOME/tmp"`,
		`rmdir "$HOME/tmp" && ln -s "` + outside + `" "$HOME/tmp"`, `rmdir "$HOME/tmp" && ln -s "` + other + `" "$HOME/tmp" && chmod 0 "$HOME"`,
		`rmdir "$HOME/tmp" && ln -s . "$HOME/tmp"`, `mv "$HOME" "$HOME.x" 2>/dev/null; rmdir "$HOME" 2>/dev/null; true`,
	} {
		if a := sh("echo kept > \"$HOME/kept\"; rm -rf \"$TMPDIR/x\"; " + script); a.ExitCode != 0 {
			t.Errorf("%s: %s", script, a.raw)
		}
		if a := sh(`cat "$HOME/kept" && echo > "$HOME/new" && rm "$HOME/new" && echo > "$TMPDIR/x" && rm "$TMPDIR/x" && test ! -L "$TMPDIR" && echo good`); a.Stdout != "kept\ngood\n" {
			t.Errorf("after %s: %s", script, a.raw)
		}
	}
	for path, want := range map[string]os.FileMode{outside: 0o640, other: 0o750 | os.ModeDir} {
		if fi, err := os.Lstat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v", path, fi, err)
		}
	}
	if _, err := os.Lstat(other + "/tmp"); err == nil {
		t.Error("another's home has a folder")
	}
}
