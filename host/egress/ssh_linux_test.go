package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/gitwire"
	"github.com/toold/toold/pdk/abi"
)

// What git pushes over ssh, and what the host has, are counted among what is held for
// policies of all runs: until the commands are sent on, and not while the pack is.
func TestSSHPushIsHeld(t *testing.T) {
	const id = "1234567890123456789012345678901234567890"
	none := strings.Repeat("0", 40)
	line := none + " " + id + " refs/heads/allow\x00 report-status"
	commands := fmt.Sprintf("%04x", len(line)+4) + line + "0000"
	advertised := fmt.Sprintf("%04x", len(id)+16+4) + id + " refs/heads/main" + "0000"
	for name, tt := range map[string]struct {
		others int64 // bytes that other runs hold
		want   error
	}{
		"room":             {0, nil},
		"full of the host": {maxHeldAll - int64(len(advertised)), errHeldMany},
		"full of both":     {maxHeldAll - int64(len(advertised)+len(commands)), errHeldMany},
	} {
		t.Run(name, func(t *testing.T) {
			gate := &Gate{}
			gate.held.Store(tt.others)
			asked := int64(0)
			s, _ := startAt(t, gate, Rules{Ask: func(context.Context, *abi.Wire) error {
				asked = gate.held.Load() - tt.others
				return nil
			}}, nil)
			git, local := connected(t)
			defer git.Close()
			defer local.Close()
			shim := &shim{&s.run, &pair{run: &s.run, local: local}}
			sent := &watching{held: &gate.held, pack: []byte("PACK")}
			io.WriteString(git, commands+"PACK")
			git.CloseWrite()
			var said bytes.Buffer
			var work sync.WaitGroup
			err := shim.push(&gitwire.Exec{Host: "localhost", Port: 22, Path: "/r", User: "git"}, sent, strings.NewReader(advertised+"more"), &said, &work)
			if work.Wait(); err == nil && said.String() != advertised+"more" {
				t.Errorf("git was told %q", said.String())
			}
			if tt.want == nil && (err != nil || asked != int64(len(advertised)+len(commands)) || sent.all.String() != commands+"PACK" || sent.heldThen != tt.others) {
				t.Errorf("%v, %d bytes were held while the policy was asked, %d when the pack was sent: %q", err, asked, sent.heldThen, sent.all.String())
			}
			if tt.want != nil && (!errors.Is(err, tt.want) || sent.all.Len() > 0 || asked != 0) {
				t.Errorf("%v, %d bytes were sent", err, sent.all.Len())
			}
			if gate.held.Load() != tt.others {
				t.Errorf("%d bytes are still counted", gate.held.Load()-tt.others)
			}
		})
	}
}

// A push that stops in its commands is not waited for, one that has not begun is: hooks
// run before it.
func TestSSHPushInTime(t *testing.T) {
	s, _ := startAt(t, &Gate{}, Rules{}, nil)
	git, local := connected(t)
	defer git.Close()
	defer local.Close()
	shim := &shim{&s.run, &pair{run: &s.run, local: local}}
	over := make(chan error, 1)
	go func() {
		var work sync.WaitGroup
		over <- shim.push(&gitwire.Exec{}, io.Discard, strings.NewReader("0000"), io.Discard, &work)
		work.Wait()
	}()
	io.WriteString(git, "0")
	for hasSent(local) { // it has not begun
		runtime.Gosched()
	}
	for {
		select {
		case err := <-over:
			if !errors.Is(err, errHeldSlow) {
				t.Error(err)
			}
			return
		default:
			local.SetReadDeadline(time.Unix(1, 0)) // as if it were over
			runtime.Gosched()
		}
	}
}

// connected is a connection, both ends of it.
func connected(t *testing.T) (one, other *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), other
}

// watching is what is sent, and how much was held when the pack was.
type watching struct {
	all      bytes.Buffer
	held     *atomic.Int64
	pack     []byte
	heldThen int64
}

func (w *watching) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, w.pack) {
		w.heldThen = w.held.Load()
	}
	return w.all.Write(p)
}
