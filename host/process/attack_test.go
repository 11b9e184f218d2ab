//go:build linux

package process_test

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/process"
)

// The supervisor, which may have more capabilities than the run, sets no extended
// attributes for it that the kernel takes from nobody but such: a program with
// capabilities is another way to be root, for whoever else sees the folder.
func TestAttributesOfTheKernel(t *testing.T) {
	capability := make([]byte, 20) // struct vfs_cap_data
	binary.LittleEndian.PutUint32(capability, 0x02000001)
	binary.LittleEndian.PutUint32(capability[4:], 1<<unix.CAP_SYS_ADMIN)
	for most, r := range levels(t) {
		if !r.Confinement().Filter {
			continue
		}
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/file", nil, 0o755))
		had := unix.Setxattr(dir+"/file", "security.capability", capability, 0) == nil
		for name, want := range map[string]string{"security.toold": "EPERM", "trusted.toold": "EPERM", "security.capability": "EPERM", "user.toold": "ok"} {
			// Arguments hold no zero byte: what a value is, is not looked at before the name.
			if got := say(t, r, probing(t, dir, "setxattr", "file", name, "value")); got != want {
				t.Errorf("%v, %s: %s, want %s", most, name, got, want)
			}
		}
		if got := say(t, r, probing(t, dir, "removexattr", "file", "security.capability")); got != "EPERM" {
			t.Errorf("%v: capabilities are taken from a program: %s", most, got)
		}
		if n, err := unix.Getxattr(dir+"/file", "security.capability", nil); had && (err != nil || n != len(capability)) {
			t.Errorf("%v: they are %d bytes, %v", most, n, err)
		}
	}
}

// A run has the devices that every tool has, and no others: not the terminals of the
// daemon's user, nor a new one of the few that a host has.
func TestDevices(t *testing.T) {
	for most, r := range levels(t) {
		hidden := t.TempDir()
		try := func(args ...string) string {
			c := probing(t, t.TempDir(), args...)
			c.Confine.Hide = []string{hidden}
			return say(t, r, c)
		}
		for device, want := range map[string]string{"/dev/null": "ok", "/dev/zero": "ok", "/dev/urandom": "ok", "/dev/shm": "EISDIR", "/dev/ptmx": "EACCES", "/dev": "EACCES", "/dev/pts": "EACCES"} {
			if _, err := os.Stat(device); err != nil {
				continue
			}
			if got := try("read", device); got != want {
				t.Errorf("%v, read %s: %s, want %s", most, device, got, want)
			}
		}
		if r.Confinement().Filter {
			for _, device := range []string{"/dev", "/dev/pts", "/dev/console"} {
				if _, err := os.Stat(device); err != nil {
					continue
				}
				if got := try("watch", device); got != "EACCES" {
					t.Errorf("%v, watch %s: %s", most, device, got)
				}
			}
		}
	}
}

// A run serves no abstract Unix socket, whose names are the whole host's.
func TestAbstractServer(t *testing.T) {
	for most, r := range levels(t) {
		if !r.Confinement().Filter {
			continue
		}
		for name, want := range map[string]string{"@toold-test-" + newMark(): "EACCES", "": "EINVAL", "socket": "ok", "./@file": "ok"} {
			if got := say(t, r, probing(t, t.TempDir(), "listen-unix", name)); got != want {
				t.Errorf("%v, %q: %s, want %s", most, name, got, want)
			}
		}
	}
}

// A run gives its sockets the names of files that it may write, as without a supervisor,
// and no abstract ones, whatever it changes meanwhile.
func TestBinding(t *testing.T) {
	for most, r := range levels(t) {
		if !r.Confinement().Filter {
			continue
		}
		dir := t.TempDir()
		must(t, os.Mkdir(dir+"/in", 0o755))
		must(t, os.Mkdir(dir+"/out", 0o777))
		must(t, os.Symlink("/proc/self/cwd", dir+"/in/self"))
		for _, tt := range []struct{ name, want string }{
			{"@toold-test-" + newMark(), "EACCES"}, {"", "EACCES"},
			{"file", "file 750 <nil>"}, {dir + "/in/absolute", dir + "/in/absolute 750 <nil>"}, {"./@at", "./@at 750 <nil>"},
			{"file", "EADDRINUSE"}, {"../out/file", "EACCES"}, {dir + "/out/file", "EACCES"}, {"nothing/file", "ENOENT"}, {"/proc/self/cwd/etc", "EACCES"}, {"self/etc", "EACCES"},
		} {
			if got := say(t, r, probing(t, dir+"/in", "bind-unix", tt.name)); got != tt.want {
				t.Errorf("%v, %q: %s, want %s", most, tt.name, got, tt.want)
			}
		}
		if got := say(t, r, probing(t, dir+"/in", "bind-race")); got != "ok" {
			t.Errorf("%v: %s", most, got)
		}
	}
}

// However much a run has its supervisor read, the supervisor's memory is bounded.
func TestMemoryOfASupervisor(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	c := probing(t, t.TempDir(), "fill", "file")
	in, gate, err := os.Pipe()
	must(t, err)
	defer in.Close()
	c.Stdin = in
	u := begin(t, r, c)
	if said := u.next(); said != "<nil>" {
		t.Fatal(said)
	}
	if h := count(t); h.childKiB > 128<<10 {
		t.Errorf("it has %d KiB", h.childKiB)
	}
	gate.Close()
	u.next() // it is done
	u.wait()
}

// What a supervisor ran before is not to be seen by the next: neither the roots nor the
// HOME of somebody else are in its mounts, nor in the folders that those lay in.
func TestMountsOfOthers(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Namespaces, Ready: 1, Max: 1})
	if !r.Confinement().Namespaces {
		t.Skip(r.Confinement().NamespacesReason)
	}
	// The second lies beneath what every run finds empty, the first does not.
	first, err := os.MkdirTemp("/var", "toold-test")
	if err != nil { // another's folder
		first = t.TempDir()
	}
	defer os.RemoveAll(first)
	for i, base := range []string{first, t.TempDir()} {
		state := base + "/state"
		for _, dir := range []string{"mallory", "victim-root/inner", "state/home/git/mallory", "state/home/git/victim-id", "state/lfs"} {
			must(t, os.MkdirAll(base+"/"+dir, 0o755))
		}
		program, err := os.ReadFile("/usr/bin/true")
		must(t, err)
		must(t, os.WriteFile(state+"/lfs/real", program, 0o755))
		must(t, os.Symlink("real", state+"/lfs/victim-link"))
		run := func(script, home, cwd string, write ...string) string {
			t.Helper()
			c := shell(cwd, script)
			home = state + "/home/git/" + home
			c.Roots, c.Confine.Write, c.Confine.Hide = write, append(write, home), []string{state}
			if home != state+"/home/git/mallory" {
				c.Confine.Exec = append(c.Confine.Exec, state+"/lfs/victim-link")
			}
			return say(t, r, c)
		}
		root, extra := base+"/victim-root", t.TempDir()+"/victim-extra"
		must(t, os.Mkdir(extra, 0o755))
		if got := run("echo > here; "+state+"/lfs/victim-link && echo ran; cat /proc/self/mountinfo", "victim-id", root, root, extra); !strings.HasPrefix(got, "ran") || strings.Count(got, "victim") < 2 {
			t.Fatalf("%d: it sees too little, so this shows nothing: %s", i, got)
		}
		// Beneath one another in turn, so that one covers the other.
		run("echo > here", "victim-id", root+"/inner", root+"/inner")
		run("echo > here", "victim-id", root, root, root+"/inner")
		look := "cat /proc/self/mountinfo; find /tmp /var/tmp /dev/shm " + state + " 2>/dev/null; true"
		for range 2 { // as it is kept, too
			got := run(look, "mallory", base+"/mallory", base+"/mallory")
			if strings.Contains(got, "victim") || !strings.Contains(got, base+"/mallory ") || !strings.Contains(got, state+"/home/git/mallory ") {
				t.Errorf("%d: %s", i, got)
			}
		}
		if got := run("ls; cat inner/here && echo read", "victim-id", root, root); !strings.HasSuffix(got, "read") {
			t.Errorf("%d: its own folders: %s", i, got)
		}
	}
}

// sendDescriptors puts into sockets as many descriptors as the kernel lets this process.
func sendDescriptors() error {
	rights := unix.UnixRights(make([]int, 253)...) // as many as a message takes, all of them standard input
	for {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		for err == nil {
			err = unix.Sendmsg(pair[0], []byte("x"), rights, nil, 0)
		}
		if err != unix.EAGAIN {
			return err
		}
	}
}

// A run that has as many descriptors wait in sockets as the kernel lets it keeps neither
// the daemon, which is of the same user, nor another run's supervisor from sending theirs.
func TestDescriptorsInSockets(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	c := probing(t, t.TempDir(), "send-descriptors")
	in, gate, err := os.Pipe()
	must(t, err)
	defer in.Close()
	c.Stdin = in
	u := begin(t, r, c)
	said := u.next()
	if want := unix.ETOOMANYREFS.Error(); said != want {
		t.Errorf("it ended with %q, want %q", said, want)
	}
	host, _ := greet(t, "tcp", "127.0.0.1:0")
	if got, _ := networked(t, r, probing(t, t.TempDir(), "tcp", host), host); got != "hello ok" {
		t.Errorf("another run: %s", got)
	}
	gate.Close()
	u.next() // it is done
	u.wait()
}
