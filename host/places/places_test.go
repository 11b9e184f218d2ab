package places

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	own := fmt.Sprintf("/run/user/%d", os.Getuid())
	if _, err := os.Stat(own); err != nil {
		own = "/home/u/.local/state/toold/0"
	}
	for _, tt := range []struct {
		name  string
		given Places
		env   map[string]string
		want  Places
	}{
		{"a user's session", Places{}, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7"},
			Places{"0", "/run/user/7/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"no session", Places{}, map[string]string{"HOME": "/home/u"},
			Places{"0", own + "/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"an instance", Places{}, map[string]string{"HOME": "/h", "XDG_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/s", "INSTANCE_ID": "b"},
			Places{"b", "/r/toold/tool-b.sock", "/s/toold/b", "/s/toold/b/admin.sock"}},
		{"variables", Places{}, map[string]string{"TOOL_SOCKET": "/a", "TOOLD_STATE_DIR": "/b", "TOOLD_ADMIN": "/c"},
			Places{"0", "/a", "/b", "/c"}},
		{"relative folders count for nothing", Places{}, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state"},
			Places{"0", own + "/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"what is given wins", Places{Socket: "/x", State: "/y"}, map[string]string{"TOOL_SOCKET": "/a", "TOOLD_STATE_DIR": "/b"},
			Places{"0", "/x", "/y", "/y/admin.sock"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Find(tt.given, func(k string) string { return tt.env[k] })
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestFolderOfAnother: with the variables of another user, as sudo may leave them,
// the socket must not be where that user can replace it.
func TestFolderOfAnother(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": dir}
	for name, f := range map[string]func(Places, func(string) string) Places{"Find": Find, "Look": Look} {
		if p := f(Places{}, func(k string) string { return env[k] }); strings.HasPrefix(p.Socket, dir) {
			t.Errorf("%s: %s", name, p.Socket)
		}
	}
}

// TestLook: a daemon that was started without XDG_RUNTIME_DIR is found by who has
// it, and by who has not.
func TestLook(t *testing.T) {
	home, runtime := t.TempDir(), t.TempDir()
	env := map[string]string{"HOME": home, "INSTANCE_ID": "look"}
	getenv := func(k string) string { return env[k] }
	served := Find(Places{}, getenv).Socket
	if !strings.HasPrefix(served, home) {
		t.Skipf("this user has a folder of its own: %s", served)
	}
	if err := os.MkdirAll(filepath.Dir(served), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", served)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := Look(Places{}, getenv).Socket; got != served {
		t.Errorf("without XDG_RUNTIME_DIR: %s", got)
	}
	env["XDG_RUNTIME_DIR"] = runtime
	if got := Look(Places{}, getenv).Socket; got != served {
		t.Errorf("with XDG_RUNTIME_DIR: %s", got)
	}
	if got := Find(Places{}, getenv).Socket; !strings.HasPrefix(got, runtime) {
		t.Errorf("a daemon listens on %s", got)
	}
	env["TOOL_SOCKET"] = "/elsewhere"
	if got := Look(Places{}, getenv).Socket; got != "/elsewhere" {
		t.Errorf("TOOL_SOCKET does not count: %s", got)
	}
}
