//go:build linux

package process_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/trust"
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
	case "send": // a request, over TLS where there is an authority, and ends its side, or itself
		raw, err := net.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		c := raw
		if args[3] != "" {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM([]byte(args[3]))
			c = tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "localhost"})
		}
		body := strings.Repeat("sent ", sentTimes)
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", args[1], len(body), body); err != nil {
			return err
		}
		if args[2] == "exit" {
			os.Exit(0)
		}
		if err := raw.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		if !strings.HasPrefix(string(b), "HTTP/1.1 200 OK\r\n") {
			return fmt.Errorf("answered %q, %w", b, err)
		}
		return nil
	case "nested": // a daemon in a sandbox with a supervisor of its own
		runtime.LockOSThread()
		filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
		prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
		if errno != 0 {
			return errno
		}
		unix.FcntlInt(fd, unix.F_SETFD, 0) // the sandbox is there as long as this is open
		return unix.Exec("/proc/self/exe", append([]string{os.Args[0], probeArg, "within"}, args[1:]...), os.Environ())
	case "within":
		r, err := process.New(process.Config{Ready: 1})
		if err != nil {
			return err
		}
		defer r.Close()
		st := r.Confinement()
		fmt.Println(st.Filter, st.Offline, strings.Contains(strings.Join(st.Lost, ";"), "no network"))
		for _, c := range [][]string{{args[2], "granted", args[3], args[3]}, {args[2], "datagrams", args[3], args[3]}, {args[2], "uring", args[3], args[3]}} {
			var out strings.Builder
			_, err := r.Run(context.Background(), process.Command{Path: c[0], Args: c[1:], Dir: args[1], Roots: []string{args[1]}, Stdout: &out})
			fmt.Println(strings.TrimSpace(out.String()), err)
		}
		return nil
	}
	return fmt.Errorf("no probe %q", args)
}

// sentTimes is how much the probe that sends sends.
const sentTimes = 40_000

// greet is a server that says hello, and how many connections it had.
func greet(t testing.TB, network, address string) (string, chan net.Addr) {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	from := make(chan net.Addr, 100_000)
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
	return networkedBy(t, r, c, egress.ParseRules(grants))
}

// networkedBy is networked with all that there is to rules.
func networkedBy(t testing.TB, r *process.Runner, c process.Command, rules egress.Rules) (string, []egress.Connection) {
	t.Helper()
	var gate egress.Gate
	s, theirs, err := gate.Start(rules, nil)
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
	needFilter(t, r)
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

// What a process sends before it ends its side of a connection, or itself, arrives
// whole: passed through, read, and read in TLS.
func TestSentBeforeTheEnd(t *testing.T) {
	want := strings.Repeat("sent ", sentTimes)
	arrived := make(chan string, 1)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			b = []byte(err.Error())
		}
		arrived <- string(b)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	dir := t.TempDir()
	for _, how := range []string{"half", "exit"} {
		for _, read := range []string{"no", "plain", "TLS"} {
			server := plain
			if read == "TLS" {
				server = secure
			}
			to := "localhost:" + port(server.Listener.Addr().String())
			rules, authority := egress.ParseRules([]string{to}), ""
			if read != "no" {
				a, err := trust.NewAuthority([]string{to})
				must(t, err)
				rules.HTTP = &egress.HTTP{
					Authority: a, Hosts: []string{to},
					TLS: func(string, uint16) (*tls.Config, error) { return &tls.Config{InsecureSkipVerify: true}, nil },
				}
				if read == "TLS" {
					authority = string(a.PEM())
				}
			}
			for range 5 {
				out, list := networkedBy(t, r, probing(t, dir, "send", to, how, authority), rules)
				if how == "half" && out != "ok" || how == "exit" && out != "" {
					t.Errorf("%s, read: %s: %q, %+v", how, read, out, list)
				}
				select {
				case got := <-arrived:
					if got != want {
						t.Errorf("%s, read: %s: %d bytes came of %d", how, read, len(got), len(want))
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("%s, read: %s: nothing came", how, read)
				}
			}
		}
	}
}

// port is that of an address.
func port(address string) string {
	_, p, _ := net.SplitHostPort(address)
	return p
}

// Names are looked up by the daemon, whatever resolver a program has.
func TestNetworkNames(t *testing.T) {
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

//go:embed testdata/attack.c
var attackSource string

// attackProgram compiles testdata/attack.c.
func attackProgram(t testing.TB) string {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler")
	}
	file := filepath.Join(t.TempDir(), "attack")
	cmd := exec.Command(cc, "-O1", "-pthread", "-o", file, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(attackSource)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// Native code tries every way to a server that it is not granted.
func TestNetworkAttacks(t *testing.T) {
	attack := attackProgram(t)
	granted, grantedHad := greet(t, "tcp", "127.0.0.1:0")
	forbidden, had := greet(t, "tcp", "127.0.0.1:0")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed.Close()
	dir := t.TempDir()
	abstract := "toold-test-" + newMark()
	_, abstractHad := greet(t, "unix", "@"+abstract)
	_, pathHad := greet(t, "unix", dir+"/outside")
	_, allowedHad := greet(t, "unix", dir+"/allowed")
	must(t, os.Mkdir(dir+"/elsewhere", 0o755))
	_, elsewhereHad := greet(t, "unix", dir+"/elsewhere/allowed")
	passSockets(t, dir+"/passes")
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/datagrams", Net: "unixgram"})
	must(t, err)
	defer datagrams.Close()
	must(t, os.Symlink(dir+"/outside", dir+"/link"))

	const none = unix.Errno(0)
	for _, most := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		r := newRunner(t, process.Config{Ready: 1, Most: most})
		elsewhere := unix.EACCES // of another process's root
		if r.Confinement().Namespaces {
			elsewhere = unix.ENOENT
		}
		for _, tt := range []struct {
			how  string
			name string
			want unix.Errno
		}{
			{"granted", "", none},
			{"granted from IPv6", "", none},
			{"granted without blocking", "", none},
			{"nobody there", "", unix.ECONNREFUSED},
			{"forbidden", "", unix.EACCES},
			{"forbidden without blocking", "", unix.EACCES},
			{"fork", "", unix.EACCES},
			{"duplicate", "", unix.EACCES},
			{"from IPv6", "", unix.EACCES},
			{"rewritten address", "", none},
			{"replaced descriptor", "", none},
			{"another after the first", "", unix.EISCONN},
			{"send with fast open", "", unix.EPERM},
			{"message with fast open", "", unix.EPERM},
			{"messages with fast open", "", unix.EPERM},
			{"fast open by option", "", unix.EPERM},
			{"datagrams", "", unix.EPERM},
			{"datagrams of IPv6", "", unix.EPERM},
			{"raw", "", unix.EPERM},
			{"multipath", "", unix.EPERM},
			{"smc", "", unix.EPERM},
			{"sctp", "", unix.EPERM},
			{"netlink", "", unix.EAFNOSUPPORT},
			{"packets", "", unix.EAFNOSUPPORT},
			{"vsock", "", unix.EAFNOSUPPORT},
			{"crypto", "", unix.EAFNOSUPPORT},
			{"bluetooth", "", unix.EAFNOSUPPORT},
			{"uring", "", unix.ENOSYS},
			{"32 bits", "", unix.ENOSYS},
			{"x32", "", unix.ENOSYS},
			{"listen", "", unix.EACCES},
			{"bind", "", unix.EACCES},
			{"path", dir + "/allowed", none},
			{"path", dir + "/outside", unix.EACCES},
			{"path", dir + "/link", unix.EACCES},
			{"path", "outside", unix.EACCES},
			{"path", fmt.Sprintf("/proc/%d/root%s/allowed", os.Getpid(), dir), elsewhere},
			{"path by a replaced descriptor", dir + "/allowed", none},
			{"path from a replaced folder", "", none},
			{"path up from a moved folder", "", none},
			{"path of datagrams", dir + "/datagrams", unix.EBADF}, // it has no such socket
			{"datagram of a pair", dir + "/datagrams", unix.EPERM},
			{"abstract", abstract, unix.EPERM},
			{"own listener", "", unix.EACCES},
			{"connect a listener", dir + "/allowed", unix.EINVAL},
			{"passed within", "", unix.EISCONN},
			{"passed from outside", dir + "/passes", unix.EACCES},
			{"connected by another", "", unix.EISCONN},
			{"two at once", "", none},
			{"both granted at once", "", none},
			{"close while connecting", "", none},
			{"polled", "", none},
			{"nobody there, without blocking", "", unix.ECONNREFUSED},
			{"no family", "", unix.EAFNOSUPPORT},
			{"no family, connected", "", unix.EAFNOSUPPORT},
			{"repair", "", unix.EPERM},
			{"options", "", unix.EPERM},
			{"options of IPv6", "", unix.EPERM},
			{"routing header", "", unix.EPERM},
			{"routing header, the older way", "", unix.EPERM},
			{"many", "", unix.EAGAIN},
			{"bad address", "", unix.EFAULT},
			{"short address", "", unix.EINVAL},
			{"long address", "", unix.EINVAL},
			{"no socket", "", unix.ENOTSOCK},
		} {
			t.Run(most.String()+"/"+tt.how, func(t *testing.T) {
				if runtime.GOARCH != "amd64" && (tt.how == "32 bits" || tt.how == "x32") {
					t.Skip("amd64 alone has these")
				}
				first := granted
				if strings.HasPrefix(tt.how, "nobody there") {
					first = closed.Addr().String()
				}
				c := process.Command{
					Path: attack, Args: []string{tt.how, port(first), port(forbidden), tt.name},
					Dir: dir, Roots: []string{dir}, Confine: process.Confine{Write: []string{dir}},
				}
				out, list := networked(t, r, c, first, "unix:"+dir+"/allowed", "unix:"+dir+"/passes")
				want := strconv.Itoa(int(tt.want))
				if tt.want == none {
					want = "ok"
				}
				if out != want && !(out == "tried" && tt.want == none) {
					t.Errorf("%s, want %s; %d connections", out, want, len(list))
				}
			})
		}
	}
	if n := len(had) + len(pathHad) + len(elsewhereHad) + len(abstractHad); n > 0 {
		t.Errorf("what is not granted was reached %d times", n)
	}
	if len(grantedHad) == 0 || len(allowedHad) == 0 {
		t.Error("what is granted was never reached")
	}
	datagrams.SetReadDeadline(time.Now())
	if n, _, err := datagrams.ReadFrom(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes reached a socket of datagrams", n)
	}
}

// passSockets serves path: who connects is sent a socket that is not connected.
func passSockets(t testing.TB, path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
				c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
				unix.Close(fd)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// fullListener is a socket on which no connection can be made, as nobody takes
// those that were.
func fullListener(t testing.TB, at unix.Sockaddr, domain int) unix.Sockaddr {
	l, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(l) })
	must(t, unix.Bind(l, at))
	must(t, unix.Listen(l, 0))
	at, err = unix.Getsockname(l)
	must(t, err)
	for range 4 {
		c, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(c) })
		unix.Connect(c, at)
	}
	return at
}

// A run that ends while its connections are being made leaves nothing behind, and
// none of them holds up others or the end.
func TestLeaveWhileConnecting(t *testing.T) {
	attack := attackProgram(t)
	granted, _ := greet(t, "tcp", "127.0.0.1:0")
	dir := t.TempDir()
	deaf := fullListener(t, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, unix.AF_INET).(*unix.SockaddrInet4)
	fullListener(t, &unix.SockaddrUnix{Name: dir + "/full"}, unix.AF_UNIX)
	for _, most := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		r := newRunner(t, process.Config{Ready: 1, Most: most})
		run := func(how, want, host string) {
			t.Helper()
			_, port, _ := net.SplitHostPort(host)
			c := process.Command{Path: attack, Args: []string{how, port, port, dir + "/full"}, Dir: dir, Roots: []string{dir}, Confine: process.Confine{Write: []string{dir}}}
			begun := time.Now()
			if out, list := networked(t, r, c, host, "unix:"+dir+"/full"); out != want {
				t.Errorf("%v: %s: %q, want %q; %+v", most, how, out, want, list)
			}
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("%v: %s took %v", most, how, took)
			}
		}
		run("granted", "ok", granted)
		run("granted", "ok", granted)
		before := count(t)
		for range 3 {
			run("leave while connecting", strconv.Itoa(int(unix.EINPROGRESS)), net.JoinHostPort("127.0.0.1", strconv.Itoa(deaf.Port)))
			run("leave a full listener", "ok", granted)
		}
		// What is closed when a run is over may not be yet.
		var after holdings
		for range 50 {
			run("granted", "ok", granted)
			after = count(t)
			if after.fds <= before.fds && after.goroutines <= before.goroutines && after.childFDs <= before.childFDs {
				break
			}
		}
		if after.fds > before.fds || after.goroutines > before.goroutines || after.childFDs > before.childFDs || after.children > before.children {
			t.Errorf("%v: %+v became %+v", most, before, after)
		}
	}
}

// What a granted Unix socket is told of a tool with a user of its own is that user,
// and that user's rights are what counts.
func TestUnixSocketOfUser(t *testing.T) {
	attack := attackProgram(t)
	r := newRunner(t, process.Config{Ready: 1})
	if !r.Confinement().Users {
		t.Skip(r.Confinement().UsersReason)
	}
	const uid, gid = 54321, 54322
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(attack), 0o755))
	must(t, os.Chown(dir, uid, gid))
	for _, name := range []string{"/theirs", "/root's", "/full"} {
		if name == "/full" {
			fullListener(t, &unix.SockaddrUnix{Name: dir + name}, unix.AF_UNIX)
			must(t, os.Chown(dir+name, uid, gid))
			continue
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + name, Net: "unix"})
		must(t, err)
		defer l.Close()
		must(t, os.Chmod(dir+name, 0o600))
		if name == "/root's" {
			continue
		}
		must(t, os.Chown(dir+name, uid, gid))
		peer := make(chan *unix.Ucred, 1)
		go func() {
			defer close(peer)
			if c, err := l.AcceptUnix(); err == nil {
				raw, _ := c.SyscallConn()
				raw.Control(func(fd uintptr) {
					cred, _ := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
					peer <- cred
				})
				c.Close()
			}
		}()
		defer func() {
			l.Close()
			if cred := <-peer; cred == nil || cred.Uid != uid || cred.Gid != gid {
				t.Errorf("it was told of %+v", cred)
			}
		}()
	}
	granted, _ := greet(t, "tcp", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(granted)
	run := func(how, name, want string) {
		t.Helper()
		c := process.Command{Path: attack, Args: []string{how, port, port, dir + name}, Dir: dir, Roots: []string{dir}, Confine: process.Confine{Write: []string{dir}, User: &confine.UserID{UID: uid, GID: gid}, Least: confine.User}}
		if out, list := networked(t, r, c, granted, "unix:"+dir+name); out != want {
			t.Errorf("%s %s: %s, want %s; %+v", how, name, out, want, list)
		}
	}
	run("path", "/theirs", "ok")
	must(t, os.MkdirAll(dir+"/closed/open", 0o755))
	must(t, os.Chmod(dir+"/closed", 0o700))
	run("watch", "/.", "ok")
	run("watch", "/closed/open", strconv.Itoa(int(unix.EACCES)))
	run("path", "/root's", strconv.Itoa(int(unix.EACCES)))
	before := count(t)
	run("leave a full listener", "/full", "ok")
	var after holdings
	for range 50 {
		run("granted", "", "ok")
		if after = count(t); after.childFDs <= before.childFDs {
			return
		}
	}
	t.Errorf("%+v became %+v", before, after)
}

// A real git clones from a real sshd and pushes to it, by the name that is granted,
// and gets to no other.
func TestSSH(t *testing.T) {
	server := hosttest.NewSSHD(t)
	port, dir := server.Port, t.TempDir()
	for name, from := range map[string]string{"key": server.Key, "key.pub": server.Key + ".pub"} {
		b, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dir, "known"), []byte(server.Known), 0o600))
	server.Git(t, "init", "-q", "--bare", "-b", "main", "remote.git")

	for _, most := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		r := newRunner(t, process.Config{Ready: 1, Most: most})
		git := func(args ...string) (string, []egress.Connection) {
			t.Helper()
			return networked(t, r, process.Command{
				Path: "/usr/bin/git", Args: args, Dir: dir, Roots: []string{dir},
				Env: []string{
					"PATH=/usr/bin:/bin", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "RES_OPTIONS=use-vc",
					"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
					"GIT_SSH_COMMAND=ssh -F /dev/null -i " + dir + "/key -o BatchMode=yes -o UserKnownHostsFile=" + dir + "/known -o StrictHostKeyChecking=yes",
				},
				Confine: process.Confine{Write: []string{dir}, Exec: []string{"/usr/bin/git", "/usr/lib/git-core", "/usr/bin/ssh", "/bin/sh"}},
			}, "localhost:"+port)
		}
		remote := server.URL("remote.git")
		copied := most.String()
		if out, list := git("clone", "-q", remote, copied); strings.Contains(out, "fatal") || len(list) == 0 || list[len(list)-1].Rule != "localhost:"+port {
			t.Fatalf("%v: clone: %s; %+v", most, out, list)
		}
		if out, _ := git("-C", copied, "commit", "-q", "--allow-empty", "-m", "from "+copied); out != "" {
			t.Fatalf("%v: commit: %s", most, out)
		}
		if out, list := git("-C", copied, "push", "-q", "origin", "HEAD:refs/heads/"+copied); out != "" {
			t.Fatalf("%v: push: %s; %+v", most, out, list)
		}
		if got := server.Git(t, "-C", "remote.git", "log", "-1", "--format=%s", copied); got != "from "+copied {
			t.Errorf("%v: the server has %q", most, got)
		}
		for _, other := range []string{"nowhere.example:" + port, "192.0.2.1:" + port, "localhost:1"} {
			out, list := git("ls-remote", "ssh://"+server.User+"@"+other+server.Dir+"/remote.git")
			if !strings.Contains(out, "fatal") || len(list) == 0 || slices.ContainsFunc(list, func(c egress.Connection) bool { return c.Refused == "" }) {
				t.Errorf("%v: %s: %s; %+v", most, other, out, list)
			}
		}
	}
}

// In a sandbox with a supervisor of its own nobody can judge connections, and there
// are none.
func TestOffline(t *testing.T) {
	attack := attackProgram(t)
	address, had := greet(t, "tcp", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(address)
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, probeArg, "nested", t.TempDir(), attack, port)
	cmd.Env = []string{"GORACE=atexit_sleep_ms=0"}
	out, err := cmd.CombinedOutput()
	want := "false true true\n9 <nil>\n1 <nil>\n38 <nil>\nok\n"
	if err != nil || string(out) != want || len(had) > 0 {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}

// BenchmarkLsRemote asks a server on this host what it has, confined, with each
// connection made by the daemon, and by os/exec, in turn.
func BenchmarkLsRemote(b *testing.B) {
	dir := b.TempDir()
	if out, err := exec.Command("/bin/sh", "-c", "cd "+dir+" && git init -q --bare r.git && git -C r.git config http.receivepack true").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(&cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}})
	defer server.Close()
	r := newRunner(b, process.Config{})
	run := func(off bool) time.Duration {
		start := time.Now()
		if off {
			cmd := exec.Command("/usr/bin/git", "ls-remote", server.URL+"/r.git")
			cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				b.Fatalf("%q %v", out, err)
			}
			return time.Since(start)
		}
		c := process.Command{
			Path: "/usr/bin/git", Args: []string{"ls-remote", server.URL + "/r.git"}, Dir: dir, Roots: []string{dir}, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir},
			Confine: process.Confine{Write: []string{dir}, Exec: []string{"/usr/bin/git", "/usr/lib/git-core"}},
		}
		out, list := networked(b, r, c, server.Listener.Addr().String())
		if out != "" || len(list) != 1 {
			b.Fatalf("%q %+v", out, list)
		}
		return time.Since(start)
	}
	var with, without []time.Duration
	for range 3 {
		run(true)
		run(false)
	}
	for b.Loop() {
		with, without = append(with, run(false)), append(without, run(true))
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(float64(with[len(with)/2].Microseconds()), "confined-µs")
	b.ReportMetric(float64(without[len(without)/2].Microseconds()), "os-exec-µs")
}
