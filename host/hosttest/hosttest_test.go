package hosttest

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestCompilerIsPlain: under the race detector it is the plain binary that
// compiles, and else there is none.
func TestCompilerIsPlain(t *testing.T) {
	d := Start(t, config.Config{State: t.TempDir()}) // with no compiled modules
	path, err := plainPath()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); (err == nil) != raceEnabled {
		t.Fatalf("the race detector is there: %v; the plain binary: %v", raceEnabled, err)
	}
	if !raceEnabled {
		return
	}
	// A script in its place says that it was started.
	if err := os.Rename(path, path+".real"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(path+".real", path); err != nil {
			t.Error(err)
		}
	})
	marker := filepath.Join(t.TempDir(), "marker")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n: > '"+marker+"'\nexec '"+path+".real' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Ready(t, "echo")
	if res, out, errs := d.Stream(t, &wire.Call{Tool: "echo", Args: []string{"x"}}, ""); res.Err != nil || out != "x\n" {
		t.Errorf("%v: %q %q", res.Err, out, errs)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("another binary compiled: %v", err)
	}
}

func TestLogBufferWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, done := newLogBuffer(), make(chan error, 1)
		says := func(word string) func() bool {
			return func() bool { return strings.Contains(l.String(), word) }
		}
		start := time.Now()
		if err := l.wait(time.Minute, says("a"), done); err == nil || time.Since(start) != time.Minute {
			t.Errorf("what is never said: %v after %v", err, time.Since(start))
		}
		go func() {
			l.Write([]byte("b"))
			time.Sleep(time.Second)
			l.Write([]byte("a"))
		}()
		start = time.Now()
		if err := l.wait(time.Minute, says("a"), done); err != nil || time.Since(start) != time.Second {
			t.Errorf("what is said after a second: %v after %v", err, time.Since(start))
		}
		done <- errors.New("it fell")
		if err := l.wait(time.Minute, says("c"), done); err == nil || !strings.Contains(err.Error(), "it fell") || len(done) != 1 {
			t.Errorf("a daemon that ended: %v, and its end is left for others: %v", err, len(done) == 1)
		}
		if err := l.wait(time.Minute, says("a"), done); err != nil {
			t.Errorf("what a daemon said that ended: %v", err)
		}
	})
}

// TestSite: a server can be given another answer while it is asked.
func TestSite(t *testing.T) {
	s := NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	get := func() int {
		t.Helper()
		res, err := s.Client().Post(s.URL+"/a?b", "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Error(err)
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code := get(); code != http.StatusTeapot {
		t.Errorf("status %d", code)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				get()
			}
		})
	}
	for range 25 {
		s.Answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	}
	all.Wait()
	if code := get(); code != http.StatusAccepted {
		t.Errorf("status %d after another answer was given", code)
	}
	if asked := s.Asked(); len(asked) != 102 || asked[0].String() != "POST /a?b body" {
		t.Errorf("%d requests, the first is %q", len(asked), asked[0])
	}
}
