package host_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// TestSocketsOfOtherUsers calls as a container with another uid does: the socket's
// mode and group say who may, and who may not is told what they are.
func TestSocketsOfOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("/tmp", "toold-users")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name+".sock") }
	sockets := []config.Socket{
		{Path: at("plain")}, {Path: at("group"), Group: "12346"}, {Path: at("all"), Mode: "0666"},
		{Path: at("own"), Mode: "0600", Group: "12346"}, {Path: filepath.Join(closed, "t.sock"), Mode: "0666"},
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{Sockets: sockets, Roots: []string{work}})
	d.Tool(t, "hello", M{"binary": "/bin/echo"}, nil)
	for i, want := range []struct {
		mode os.FileMode
		gid  uint32
	}{{0o660, uint32(os.Getgid())}, {0o660, 12346}, {0o666, uint32(os.Getgid())}, {0o600, 12346}} {
		info, err := os.Lstat(sockets[i].Path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode().Perm() != want.mode || gid != want.gid {
			t.Errorf("%s has mode %v and group %d", sockets[i].Path, info.Mode(), gid)
		}
	}

	program, err := os.ReadFile(filepath.Join(hosttest.Programs(t), "tool-client"))
	if err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(dir, "hello")
	if err := os.WriteFile(wrapper, program, 0o755); err != nil {
		t.Fatal(err)
	}
	call := func(socket string, groups ...uint32) (stdout, stderr string) {
		cmd := exec.Command(wrapper, "there")
		cmd.Dir, cmd.Env = work, []string{"TOOL_SOCKET=" + socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345, Groups: groups}}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), errs.String()
	}
	for _, tt := range []struct {
		socket string
		groups []uint32
		told   string // empty: it is served
	}{
		{at("all"), nil, ""},
		{at("group"), []uint32{12346}, ""},
		{at("group"), nil, "permission denied; the socket has mode 0660, owner 0 and group 12346, and this is uid 12345, gid 12345; add this user to group 12346"},
		{at("group"), []uint32{7, 8}, "this is uid 12345, gid 12345 and groups 7, 8; add this user to group 12346"},
		{at("plain"), []uint32{12346}, "permission denied; the socket has mode 0660"},
		{at("own"), []uint32{12346}, "permission denied; the socket has mode 0600"},
		{sockets[4].Path, nil, "permission denied; " + closed + " may not be entered: mode 0700, owner 0 and group"},
	} {
		stdout, stderr := call(tt.socket, tt.groups...)
		if served := stdout == "there\n"; served != (tt.told == "") || !strings.Contains(stderr, tt.told) {
			t.Errorf("%s as %v: %q, %q", filepath.Base(tt.socket), tt.groups, stdout, stderr)
		}
	}
}
