package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostileText: what a tenant named its session, or a tool of its wrote, does nothing
// to the terminal of the operator who lists or reads it.
func TestHostileText(t *testing.T) {
	const hostile = "\x1b]0;title\a\x1b[2J\u009b31m\u202eright to left\u200b\nrow of another\x7f\U000e0001"
	line := oneLine(hostile)
	if strings.ContainsAny(line, "\x1b\a\u009b\u202e\u200b\n\x7f\U000e0001") || !strings.Contains(line, "right to left") {
		t.Errorf("a line: %q", line)
	}

	var out bytes.Buffer
	s := &state{out: &out}
	if err := s.printJSON(map[string]string{"name": hostile, "plain": "é 漢 🎉"}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["name"] != hostile {
		t.Errorf("JSON: %v %q", err, back)
	}
	if strings.ContainsAny(out.String(), "\x1b\u009b\u202e\u200b\x7f\U000e0001") || !strings.Contains(out.String(), "é 漢 🎉") {
		t.Errorf("JSON: %q", out.String())
	}

	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	shown(file).Write([]byte(hostile))
	if b, err := os.ReadFile(file.Name()); err != nil || string(b) != hostile {
		t.Errorf("a file: %q, %v", b, err)
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	terminal := os.NewFile(fd, "terminal")
	defer terminal.Close()
	shown(terminal).Write([]byte(hostile + "end"))
	var got []byte
	for b := make([]byte, 1024); !bytes.Contains(got, []byte("end")); {
		n, err := master.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b[:n]...)
	}
	if bytes.Contains(got, []byte("\x1b]")) || bytes.Contains(got, []byte("title")) || bytes.Contains(got, []byte("\u009b")) || !bytes.Contains(got, []byte("right to left")) {
		t.Errorf("a terminal: %q", got)
	}
}
