package client

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
)

// serve answers the admin socket's requests with a handler.
func serve(t *testing.T, h http.HandlerFunc) *Admin {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "toold-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "admin.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
		os.RemoveAll(dir)
	})
	return NewAdmin(path)
}

func TestAdmin(t *testing.T) {
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.EscapedPath() {
		case "/tools":
			w.Write([]byte(`[{"name":"git","state":"ok","of_a_newer_daemon":1}]`))
		case "/tools/git":
			w.Write([]byte(`{"name":"git","state":"broken","reason":"why"}`))
		case "/tools/..%2Fstatus":
			w.WriteHeader(http.StatusNotFound)
			w.Write([]byte(`{"error":"no tool of that name"}`))
		case "/status":
			w.Write([]byte(`not json`))
		default:
			http.Error(w, "boom", http.StatusInternalServerError)
		}
	})
	ctx := t.Context()
	if tools, err := a.Tools(ctx); err != nil || len(tools) != 1 || tools[0].Name != "git" || tools[0].State != adminapi.ToolOK {
		t.Errorf("Tools: %+v, %v", tools, err)
	}
	if tool, err := a.Tool(ctx, "git"); err != nil || tool.State != adminapi.ToolBroken || tool.Reason != "why" {
		t.Errorf("Tool: %+v, %v", tool, err)
	}
	// A name cannot reach another path.
	if _, err := a.Tool(ctx, "../status"); !errors.Is(err, adminapi.ErrNotFound) || err.Error() != "no tool of that name" {
		t.Errorf("Tool of a bad name: %v", err)
	}
	if _, err := a.Status(ctx); err == nil || !strings.Contains(err.Error(), "/status") {
		t.Errorf("Status that is not JSON: %v", err)
	}
	if _, err := a.Result(ctx, "x"); err == nil || errors.Is(err, adminapi.ErrNotFound) || !strings.Contains(err.Error(), "boom") {
		t.Errorf("Result that fails: %v", err)
	}
}

func TestAdminWithoutADaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	_, err := NewAdmin(path).Status(t.Context())
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "http://") {
		t.Errorf("got %v", err)
	}
}

// TestUpgradeWhileItLeaves: a daemon that gives its place away may leave while it is
// asked who serves, and the next one is asked then.
func TestUpgradeWhileItLeaves(t *testing.T) {
	asked := 0
	a := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch {
		case r.Method == http.MethodPost:
			w.Write([]byte(`{"pid":4711}`))
		case asked < 5: // the connection ends without an answer
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		case asked < 8:
			w.Write([]byte(`{"pid":4710}`))
		default:
			w.Write([]byte(`{"pid":4711}`))
		}
	})
	if s, err := a.Upgrade(t.Context(), "", time.Minute); err != nil || s.PID != 4711 {
		t.Errorf("%+v, %v", s, err)
	}
}
