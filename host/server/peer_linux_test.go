package server

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal that arrives while a peer is looked at does not make it one that has ended.
func TestEndedWhileSignalled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	peer, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	raw, err := peer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const signals = 500_000
	thread := unix.Gettid()
	var sent atomic.Int64
	done := make(chan struct{})
	go func() { // as the runtime does to preempt goroutines
		defer close(done)
		for sent.Add(1) < signals {
			unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		}
	}()
	looks, n := 0, 0
	for ; sent.Load() < signals; looks++ {
		if ended(raw) {
			n++
		}
	}
	<-done
	if n > 0 {
		t.Errorf("this process had ended in %d of %d looks", n, looks)
	}
}
