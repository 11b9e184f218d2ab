package host_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// A binary reaches what its tool.json names, and is told on its standard error what
// it names not. Both are in the journal.
func TestNetworkOfBinaries(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	hello := func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello\n")) }
	granted := hosttest.NewSite(t, "127.0.0.1:0", nil, hello)
	other := hosttest.NewSite(t, "127.0.0.1:0", nil, hello)
	for _, most := range []string{"", "seccomp"} {
		d := hosttest.Start(t, config.Config{ConfineMost: most})
		d.Tool(t, "curl", M{"binary": curl, "capabilities": M{"network": []string{"localhost:" + granted.Port()}}}, nil)
		d.Tool(t, "none", M{"binary": curl}, nil)
		get := func(tool, url string) *answer {
			return ask(t, d.Socket, M{"tool": tool, "cwd": d.Root, "args": []string{"-sS", "--max-time", "20", url}})
		}
		// By name and by address.
		for _, url := range []string{"http://localhost:" + granted.Port(), granted.URL} {
			if a := get("curl", url); a.Stdout != "hello\n" {
				t.Errorf("%s: %s", url, a.raw)
			}
		}
		a := get("curl", other.URL)
		if a.ExitCode != 7 || !strings.Contains(a.Stderr, "toold: the connection to 127.0.0.1:"+other.Port()+" is refused: capabilities.network grants only localhost:"+granted.Port()+
			`; add "127.0.0.1:`+other.Port()+`" to capabilities.network in tool.json`) {
			t.Errorf("%s", a.raw)
		}
		if a := get("none", "http://nowhere.example/"); !strings.Contains(a.Stderr, `the connection to nowhere.example:80 is refused: capabilities.network grants no host; add "nowhere.example:80"`) {
			t.Errorf("%s", a.raw)
		}
		var journal bytes.Buffer
		filepath.WalkDir(filepath.Join(d.Config.State, "sessions"), func(path string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				b, _ := os.ReadFile(path)
				journal.Write(b)
			}
			return nil
		})
		for _, want := range []string{`"connections":[{"host":"` + net.JoinHostPort("localhost", granted.Port()), `"host":"nowhere.example:80","refused":"capabilities.network grants no host"`} {
			if !strings.Contains(journal.String(), want) {
				t.Errorf("the journal has no %s: %s", want, journal.String())
			}
		}
		if !strings.Contains(d.Logs(), `"msg":"connection refused"`) {
			t.Error("the log does not tell")
		}
	}
	if n := len(other.Asked()); n > 0 {
		t.Errorf("a server that is not granted was asked %d times", n)
	}
}
