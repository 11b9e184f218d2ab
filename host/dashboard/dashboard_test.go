package dashboard_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

type M = map[string]any

// daemon is one in a process of its own with a page on a port that is free.
func daemon(t testing.TB, c config.Config) (*hosttest.Process, *adminapi.Dashboard) {
	t.Helper()
	c.Dashboard = "127.0.0.1:0"
	p := hosttest.StartProcess(t, c)
	page, err := client.NewAdmin(p.Admin).Dashboard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p, page
}

// TestPage shows a page with a tool, a call that runs, its output, and its end, as they
// happen.
func TestPage(t *testing.T) {
	p, page := daemon(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "shell", M{"binary": "/bin/sh"}, nil)
	b := open(t)
	b.screen(1280, 900, false)
	b.visit(page.URL())
	b.awaitText("Nothing is wrong")
	gate := p.Root + "/gate"
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan *wire.Result, 1)
	go func() {
		res, err := client.Call(t.Context(), p.Socket, &wire.Call{Tool: "shell", Cwd: p.Root, Args: []string{"-c", "echo it runs; read x <gate; exit 3"}})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	b.awaitText("it runs")
	if err := os.WriteFile(gate, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitText("exit 3")
	<-done
	b.visit(page.URL()[:len(page.URL())-len("#token="+page.Token)] + "#/tools")
	b.await(`document.querySelector("h2").textContent === "Tools" && document.querySelector("tbody th a")?.textContent === "shell"`)
	if faults := b.faulty(); len(faults) > 0 {
		t.Errorf("the page: %q", faults)
	}
}
