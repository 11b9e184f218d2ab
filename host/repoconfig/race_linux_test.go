package repoconfig

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A FIFO that was put in the place of a folder, after it was seen to be one, is not waited
// for: whoever reads it would do so for good, with a thread of the daemon's.
func TestFIFOForAFolder(t *testing.T) {
	dir := resolved(t, t.TempDir())
	fifo := dir + "/objects"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &repoReader{roots: newRoots([]string{dir})}
	defer r.close()
	done := make(chan error, 1)
	go func() {
		entries := 0
		done <- r.plainTree(fifo, 6, &entries)
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		// This succeeds only where somebody waits for it.
		if fd, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
			<-done
			t.Fatal("it was waited for")
		}
	}
}

// A folder with more than a repository can have is not read to its end.
func TestFullFolder(t *testing.T) {
	dir := resolved(t, t.TempDir())
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(dir+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := newRoots([]string{dir})
	r.listed = maxListed - 3
	defer r.close()
	if list, err := r.readDir(dir); err != nil || len(list) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	if _, err := r.readDir(dir); err == nil {
		t.Error("it was read")
	}
}

// Links are followed as far as the kernel follows them, and no more of them than anybody
// has. What each holds can make one take seconds, and a repository may have any number.
func TestManyLinks(t *testing.T) {
	_, repo, _ := repository(t)
	last := "HEAD"
	for i := range 50 {
		name := fmt.Sprintf("link%d", i)
		symlink(t, last, repo+"/.git/"+name)
		last = name
	}
	r := newRoots([]string{repo})
	defer r.close()
	if _, err := r.resolve(repo + "/.git/link30"); err != nil {
		t.Error(err)
	}
	if _, err := r.resolve(repo + "/.git/link49"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("fifty links were followed: %v", err)
	}
	r.resolved = maxResolved - 1
	if _, err := r.resolve(repo + "/.git/link0"); err != nil {
		t.Error(err)
	}
	if _, err := r.resolve(repo + "/.git/link0"); err == nil {
		t.Error("any number is resolved")
	}
	if _, err := r.resolve(repo + "/.git/HEAD"); err != nil {
		t.Errorf("what is no link: %v", err)
	}
}
