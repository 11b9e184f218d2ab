// Command probe is what a hostile program could be in a container that calls: it has
// no shell and no libraries, since the image has none either.
//
//	probe write DIR...    tries to change what is in the folders; prints what it could
//	probe look WORD...    looks for the words, and for the ways to them; prints what it found
//	probe call TOOL ARG...  calls the tool once for each line of its input
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "write":
		for _, dir := range os.Args[2:] {
			write(dir)
		}
	case "look":
		look(os.Args[2:])
	case "call":
		call(os.Args[2], os.Args[3:])
	}
	fmt.Println("done")
}

func found(format string, args ...any) { fmt.Printf("FOUND "+format+"\n", args...) }

// write tries each way to put something else in the place of what is in dir.
func write(dir string) {
	os.Chmod(dir, 0o777)
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); err == nil {
		found("%s takes a file", dir)
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, ""); err == nil {
		found("%s is covered by a mount", dir)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND, ""); err == nil {
		found("%s is mounted for writing", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		found("nothing in %s to try: %v", dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if path == "/workspace" { // which it shares with the daemon, for writing
			continue
		}
		aside := filepath.Join(dir, "aside")
		for what, try := range map[string]func() error{
			"removed":  func() error { return os.Remove(path) },
			"renamed":  func() error { return os.Rename(path, aside) },
			"linked":   func() error { return os.Link(path, aside) },
			"opened":   func() error { f, err := os.OpenFile(path, os.O_WRONLY, 0); f.Close(); return err },
			"given":    func() error { return os.Lchown(path, os.Getuid()+1, -1) },
			"chmodded": func() error { return os.Chmod(path, 0o777) },
			"bound":    func() error { return listen(path) },
		} {
			if err := try(); err == nil {
				found("%s is %s", path, what)
			}
		}
	}
}

func listen(path string) error {
	l, err := net.Listen("unix", path)
	if err == nil {
		l.Close()
	}
	return err
}

// look searches everything that this process can open, other processes and the network.
func look(words []string) {
	self := os.Getpid()
	has := func(where string, text []byte) {
		for _, w := range words {
			if bytes.Contains(text, []byte(w)) {
				found("%s has %s", where, w)
			}
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		found("no status: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if (name == "CapEff" || name == "CapPrm" || name == "CapBnd" || name == "CapAmb") && strings.Trim(value, "0") != "" {
			found("capabilities: %s %s", name, value)
		}
		if name == "NoNewPrivs" && value != "1" || name == "Uid" && strings.HasPrefix(value, "0\t") {
			found("rights: %s %s", name, value)
		}
	}
	sockets := 0
	filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if path == "/sys" || path == "/dev" {
			return fs.SkipDir
		}
		if rest, ok := strings.CutPrefix(path, "/proc/"); ok {
			top, _, _ := strings.Cut(rest, "/")
			if pid, err := strconv.Atoi(top); err == nil && pid != self && pid != 1 {
				found("process %d", pid)
			}
			if strings.Contains(rest, "/task/") || strings.HasPrefix(rest, "sys") || rest == "kmsg" {
				return fs.SkipDir
			}
		}
		switch {
		case d.Type()&fs.ModeSocket != 0:
			sockets++
			if want := os.Getenv("TOOL_SOCKET"); path != want {
				found("socket %s", path)
			}
		case d.Type().IsRegular():
			if strings.HasPrefix(path, "/proc/") && path != "/proc/1/environ" && path != "/proc/net/unix" && path != "/proc/1/mountinfo" {
				return nil
			}
			if f, err := os.Open(path); err == nil {
				buf := make([]byte, 4<<20)
				n, _ := f.Read(buf)
				f.Close()
				has(path, buf[:n])
			}
		}
		return nil
	})
	if sockets != 1 {
		found("%d sockets", sockets)
	}
	// /proc/1 is this container's.
	if environ, err := os.ReadFile("/proc/1/environ"); err != nil || !bytes.Contains(environ, []byte("TOOL_SOCKET=")) {
		found("process 1 is another's: %v", err)
	}
	if links, err := net.Interfaces(); err != nil || len(links) > 1 || len(links) == 1 && links[0].Flags&net.FlagLoopback == 0 {
		found("interfaces %v, %v", links, err)
	}
	if c, err := net.DialTimeout("tcp", "127.0.0.1:8443", time.Second); err == nil {
		c.Close()
		found("the remote answers")
	}
}

// call calls the tool once for each line of its input.
func call(tool string, args []string) {
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Println("ready"); lines.Scan(); {
		out, err := exec.Command(tool, args...).CombinedOutput()
		fmt.Printf("%q %v\n", bytes.TrimSpace(out), err)
	}
}
