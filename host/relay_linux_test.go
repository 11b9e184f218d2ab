package host_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestRelayOfOthers: while a program of the caller's runs for a call, nobody else
// reaches the socket that asks for it: no other user of the host, and no run of another
// call of the same daemon, though both know its path.
func TestRelayOfOthers(t *testing.T) {
	c := newCaller(t)
	c.d.Tool(t, "other", M{"binary": "/usr/bin/perl", "capabilities": M{"network": []string{"example.com:443"}}}, nil)
	asked, release := filepath.Join(c.home, "asked"), filepath.Join(c.home, "release")
	for _, fifo := range []string{asked, release} {
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.hook("pre-commit", "echo here > "+asked+"\nread line < "+release)
	cmd := c.command(nil, "commit", "--allow-empty", "-m", "kept apart")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, asked)
	var sockets []string
	filepath.WalkDir(filepath.Join(c.d.State, "callbacks"), func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type() == os.ModeSocket {
			sockets = append(sockets, path)
		}
		return nil
	})
	if len(sockets) != 1 {
		t.Fatalf("sockets: %q", sockets)
	}
	own, err := net.Dial("unix", sockets[0])
	if err != nil {
		t.Fatalf("the daemon's own user cannot connect, so this shows nothing: %v", err)
	}
	own.Close()
	// For a moment all that the daemon's folders are closed by is what it made.
	connect := `use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die; print connect($s, pack_sockaddr_un($ARGV[0])) ? "connected" : "refused " . ($!+0)`
	if os.Getuid() == 0 {
		for dir := filepath.Dir(c.d.State); dir != "/" && dir != "/tmp"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(c.d.State, 0o755); err != nil { // as an operator may have made it
			t.Fatal(err)
		}
		stranger := exec.Command("/usr/bin/perl", "-e", connect, sockets[0])
		stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := stranger.CombinedOutput(); err != nil || string(out) != "refused "+strconv.Itoa(int(syscall.EACCES)) {
			t.Errorf("another user: %s, %v", out, err)
		}
	}
	res, out, _ := c.d.Stream(t, &wire.Call{Tool: "other", Args: []string{"-e", connect, sockets[0]}, Cwd: c.d.Root}, "")
	if res.Err != nil || !strings.HasPrefix(out, "refused ") && hosttest.Judged() {
		t.Errorf("another call: %+v, %s", res, out)
	}
	if err := os.WriteFile(release, []byte("go on\n"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(c.subjects(), "kept apart ") {
		t.Errorf("%v, %s", err, c.subjects())
	}
}
