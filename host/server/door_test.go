package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
)

// A connection that has asked nothing gives its place to a further one, the oldest first,
// and one that has asked keeps its own, however long it is idle.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	const limit = 4
	begun := make(chan bool, 1)
	d, err := ListenDoor(DoorConfig{
		Path: filepath.Join(t.TempDir(), "s"), Group: -1, MaxConns: limit, Refusal: func(e *fault.Error) []byte { return []byte(e.Error()) },
		Handle: func(_ context.Context, stopping <-chan struct{}, nc *net.UnixConn, _ Peer, begin func() bool) {
			word := make([]byte, 3)
			if _, err := io.ReadFull(nc, word); err == nil {
				begun <- begin()
				io.Copy(io.Discard, nc)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(t.Context()) }()
	var all []net.Conn
	t.Cleanup(func() {
		for _, c := range all {
			c.Close()
		}
		if err := d.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	silent := func() net.Conn {
		t.Helper()
		nc, err := net.Dial("unix", d.config.Path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, nc)
		for d.Conns() < min(len(all), limit) {
			runtime.Gosched()
		}
		return nc
	}
	asks := func() (net.Conn, bool) {
		t.Helper()
		nc := silent()
		io.WriteString(nc, "ask")
		return nc, <-begun
	}
	told := func(nc net.Conn) string {
		t.Helper()
		b, err := io.ReadAll(nc)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	pass := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, c := range d.conns {
			c.since = c.since.Add(-minIdle)
		}
	}
	first, ok := asks()
	if !ok {
		t.Fatal("the first has no place")
	}
	pass()
	oldest := silent()
	io.WriteString(oldest, "no") // half of what would be asked
	asks()                       // after it was accepted
	pass()
	next := silent()
	// There are four. None of those that are silent has just come.
	pass()
	if _, ok := asks(); !ok {
		t.Error("one that asks is kept out by those that are silent")
	}
	if got := told(oldest); !strings.Contains(got, "connect again") {
		t.Errorf("the oldest was told %q", got)
	}
	if _, ok := asks(); !ok {
		t.Error("a second one is kept out")
	}
	if got := told(next); !strings.Contains(got, "connect again") {
		t.Errorf("the next was told %q", got)
	}
	pass()
	if got := told(silent()); !strings.Contains(got, "already serves") {
		t.Errorf("beyond those that asked, one is told %q", got)
	}
	if d.Conns() != limit {
		t.Errorf("%d connections", d.Conns())
	}
	io.WriteString(first, "still here")
}

// A connection that was told that its place is another's is not served.
func TestSilentConnectionThatLostItsPlace(t *testing.T) {
	d := &Door{conns: map[*net.UnixConn]*doorConn{}, held: map[uint32]int{}}
	if nc := unixConn(t); d.begin(nc) {
		t.Error("it is served")
	}
}

// A uid that holds most has to give up its own places, also those it is silent on.
func TestDoorPlacesOfOthers(t *testing.T) {
	const limit = 128
	d := &Door{config: DoorConfig{MaxConns: limit, Refusal: func(*fault.Error) []byte { return nil }}, conns: map[*net.UnixConn]*doorConn{}, held: map[uint32]int{}, stopping: make(chan struct{})}
	enter := func(uid uint32, begun bool) bool {
		nc := unixConn(t)
		if d.take(nc, Peer{UID: uid}) != nil {
			return false
		}
		d.running.Done()
		d.conns[nc].begun = begun
		d.conns[nc].since = time.Now().Add(-time.Hour)
		return true
	}
	leavesPlaces(t, limit, func(uid uint32) bool { return enter(uid, uid == 1) })
	room := 0
	for enter(4, true) {
		room++
	}
	if room != 2 {
		t.Errorf("two were silent, and made room for %d", room)
	}
	for _, c := range d.conns {
		c.begun, c.since = false, time.Now()
	}
	if enter(5, true) {
		t.Error("one that has just come loses its place")
	}
}

// Connections to the admin socket are bounded, and none that asks nothing, or is refused,
// keeps out the operator or ends what the operator watches.
func TestAdminKeepsOperatorIn(t *testing.T) {
	dir := t.TempDir()
	refuse := make(chan struct{}) // closed once peers are refused
	watched, end := make(chan struct{}), make(chan struct{})
	a, err := ListenAdmin(nil, filepath.Join(dir, "s"), filepath.Join(dir, "lock"), func(Peer) error {
		select {
		case <-refuse:
			return errors.New("not you")
		default:
			return nil
		}
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/watch" {
			close(watched)
			<-end
		}
		io.WriteString(w, "hello")
	}))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve() }()
	var all []net.Conn
	dial := func() net.Conn {
		t.Helper()
		nc, err := net.Dial("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, nc)
		return nc
	}
	t.Cleanup(func() {
		for _, nc := range all {
			nc.Close()
		}
		if err := a.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	ask := func(nc net.Conn, path string) { io.WriteString(nc, "GET "+path+" HTTP/1.1\r\nHost: toold\r\n\r\n") }
	answer := func(nc net.Conn) int {
		t.Helper()
		res, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	watch := dial()
	ask(watch, "/watch")
	<-watched
	for range maxAdminConns + 20 {
		dial()
	}
	other := dial()
	ask(other, "/")
	if status := answer(other); status != http.StatusOK {
		t.Errorf("the operator is answered %d", status)
	}
	if n := a.http.Conns(); n > maxAdminConns {
		t.Errorf("%d connections", n)
	}
	close(end)
	if status := answer(watch); status != http.StatusOK {
		t.Errorf("what the operator watched is answered %d", status)
	}
	close(refuse)
	refused := dial()
	ask(refused, "/")
	if status := answer(refused); status != http.StatusForbidden {
		t.Errorf("a peer that is not admitted is answered %d", status)
	}
	if _, err := refused.Read(make([]byte, 1)); err == nil {
		t.Error("its connection goes on")
	}
}
