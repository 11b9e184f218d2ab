//go:build linux

package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/seccomp"
)

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		abi                int
		filter, namespaces bool
		level              Level
		lost               int
	}{
		{0, false, false, Unconfined, 10},
		{0, true, false, Unconfined, 5},
		{2, false, false, Unconfined, 8},
		{3, false, false, Landlock, 7},
		{5, false, false, Landlock, 6},
		{6, false, false, Landlock, 4},
		{7, false, false, Landlock, 4},
		{7, true, false, Seccomp, 0},
		{5, true, false, Seccomp, 1},
		{7, true, true, Namespaces, 0},
	} {
		s := Status{ABI: tt.abi, Filter: tt.filter, Namespaces: tt.namespaces}
		s.lose()
		if s.Level() != tt.level || len(s.Lost) != tt.lost {
			t.Errorf("%+v: %v, %d lost: %q", tt, s.Level(), len(s.Lost), s.Lost)
		}
	}
	if s := Confinement(); s.ABI == 0 && s.Reason == "" || !s.Filter && s.FilterReason == "" || !s.Namespaces && s.NamespacesReason == "" {
		t.Errorf("something is missing, for no reason: %+v", s)
	}
}

// With the rules of each older version writing and executing are confined as
// well, on a thread that ends.
func TestOlderVersions(t *testing.T) {
	kernel, _ := landlockABI()
	if kernel < abiRefer {
		t.Skip("no Landlock")
	}
	for abi := abiRefer; abi <= kernel; abi++ {
		t.Run(fmt.Sprint(abi), func(t *testing.T) {
			base := t.TempDir()
			in, out := base+"/in", base+"/out"
			for _, dir := range []string{in, in + "/sub", out} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(dir+"/file", []byte("x"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := make(chan string, 1)
			seccomp.OnThread(func() {
				var words []string
				say := func(err error) { words = append(words, errName(err)) }
				var rulesets Rulesets
				set, step, err := rulesets.get(confinement{path: "/bin/true", write: in, abi: abi})
				scoped := false
				if err == nil {
					step, err = renounce(false)
				}
				if err == nil {
					scoped, step, err = restrictThread(abi, set.fd)
				}
				if err != nil {
					got <- step + ": " + err.Error()
					return
				}
				say(unix.Rename(in+"/file", in+"/sub/new"))
				say(unix.Rename(in+"/sub/new", out+"/new"))
				say(unix.Mkdir(out+"/dir", 0o755))
				say(unix.Truncate(out+"/file", 0))
				if os.Getuid() == 0 { // others may not anyway
					if err := unix.Mknod(in+"/null", unix.S_IFCHR, int(unix.Mkdev(1, 3))); err != unix.EACCES {
						words = append(words, "mknod "+errName(err))
					}
				}
				say(unix.Exec("/bin/sh", []string{"sh", "-c", "exit 9"}, nil))
				words = append(words, fmt.Sprint(scoped))
				got <- strings.Join(words, " ")
			})
			truncate := "EACCES"
			if abi < abiTruncate {
				truncate = "ok"
			}
			if got, want := <-got, fmt.Sprintf("ok EACCES EACCES %s EACCES %v", truncate, abi >= abiScope); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func errName(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return "ok"
}

// What runs on a thread of its own leaves no thread behind that is confined.
func TestThreadEnds(t *testing.T) {
	dir := t.TempDir()
	var rulesets Rulesets
	for range 50 {
		done := make(chan struct{})
		seccomp.OnThread(func() {
			defer close(done)
			set, step, err := rulesets.get(confinement{path: "/bin/true", abi: abiRefer})
			if err == nil {
				if step, err = renounce(false); err == nil {
					_, step, err = restrictThread(abiRefer, set.fd)
				}
			}
			if err != nil {
				t.Error(step, err)
			}
		})
		<-done
	}
	for range 50 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestJoin(t *testing.T) {
	for _, list := range [][]string{nil, {""}, {"", ""}, {"a"}, {"a", "", "\xff\n "}, {"", "b", ""}} {
		if got := Split(Join(list)); !slices.Equal(got, list) {
			t.Errorf("%q became %q", list, got)
		}
	}
}

// The working folder that is entered is the one that was judged.
func TestOpenSame(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"/in", "/other"} {
		if err := os.Mkdir(base+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := beneath.OpenResolved(base + "/in")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	same, err := (*View)(nil).Open(base+"/in", fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(same)
	if err := errors.Join(os.Rename(base+"/in", base+"/was"), os.Rename(base+"/other", base+"/in")); err != nil {
		t.Fatal(err)
	}
	if other, err := (*View)(nil).Open(base+"/in", fd); err == nil {
		unix.Close(other)
		t.Error("another folder was taken for it")
	}
	if err := errors.Join(os.Rename(base+"/in", base+"/other"), os.Symlink("was", base+"/in")); err != nil {
		t.Fatal(err)
	}
	if link, err := (*View)(nil).Open(base+"/in", fd); err == nil {
		unix.Close(link)
		t.Error("a link to it was followed")
	}
}
