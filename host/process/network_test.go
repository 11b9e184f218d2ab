//go:build linux

package process_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/process"
)

// networkProbe are the probes of connections.
func networkProbe(args []string) error {
	switch args[0] {
	case "tcp": // says what the server says
		c, err := net.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		fmt.Print(string(b))
		return err
	case "lookup": // by Go's own resolver
		r := net.Resolver{PreferGo: true}
		addrs, err := r.LookupNetIP(context.Background(), "ip", args[1])
		if err != nil {
			return err
		}
		fmt.Print(addrs[0].Unmap(), " ")
		return networkProbe([]string{"tcp", net.JoinHostPort(addrs[0].Unmap().String(), args[2])})
	}
	return fmt.Errorf("no probe %q", args)
}

// greet is a server that says hello, and how many connections it had.
func greet(t testing.TB, network, address string) (string, chan net.Addr) {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	from := make(chan net.Addr, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from <- c.RemoteAddr()
			io.WriteString(c, "hello ")
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), from
}

// networked runs c with what grants name, and returns its output and its
// connections.
func networked(t testing.TB, r *process.Runner, c process.Command, grants ...string) (string, []egress.Connection) {
	t.Helper()
	var gate egress.Gate
	s, theirs, err := gate.Start(egress.ParseRules(grants), nil)
	must(t, err)
	c.Confine.Network = theirs
	out := say(t, r, c)
	theirs.Close()
	list, _, _ := s.Close()
	return out, list
}

func TestConnect(t *testing.T) {
	granted, _ := greet(t, "tcp", "127.0.0.1:0")
	other, had := greet(t, "tcp", "127.0.0.1:0")
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	out, list := networked(t, r, probing(t, dir, "tcp", granted), granted)
	if out != "hello ok" || len(list) != 1 || list[0].Target() != granted || list[0].Rule != granted || list[0].Received != 6 {
		t.Errorf("%q, %+v", out, list)
	}
	out, list = networked(t, r, probing(t, dir, "tcp", other), granted)
	if out != "EACCES" || len(list) != 1 || list[0].Refused == "" || !strings.Contains(list[0].Advice(), `add "`+other+`" to capabilities.network`) {
		t.Errorf("%q, %+v", out, list)
	}
	if out := say(t, r, probing(t, dir, "tcp", other)); out != "EACCES" {
		t.Errorf("without a network: %q", out)
	}
	if len(had) > 0 {
		t.Error("it was reached")
	}
}

// Names are looked up by the daemon, whatever resolver a program has.
func TestNames(t *testing.T) {
	_, port, _ := net.SplitHostPort(first(greet(t, "tcp", "127.0.0.1:0")))
	r := newRunner(t, process.Config{Ready: 1})
	if !r.Confinement().Namespaces {
		t.Skip("programs without glibc find the name server in a file of the view")
	}
	out, list := networked(t, r, probing(t, t.TempDir(), "lookup", "localhost.", port), "localhost:"+port)
	if out != "198.18.0.1 hello ok" || len(list) != 1 || list[0].Host != "localhost" {
		t.Errorf("%q, %+v", out, list)
	}
	out, list = networked(t, r, probing(t, t.TempDir(), "lookup", "nowhere.example.", port), "localhost:"+port)
	if out != "198.18.0.1 EACCES" || len(list) != 1 || list[0].Target() != "nowhere.example:"+port || list[0].Refused == "" {
		t.Errorf("%q, %+v", out, list)
	}
	out, _ = networked(t, r, probing(t, t.TempDir(), "lookup", "no-such-host.invalid.", port), "*.invalid")
	if !strings.Contains(out, "no such host") && !strings.Contains(out, "server misbehaving") {
		t.Errorf("%q", out)
	}
}

func first(s string, _ chan net.Addr) string { return s }
