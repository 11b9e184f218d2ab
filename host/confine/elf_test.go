//go:build linux

package confine

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oracle is what debug/elf says.
func oracle(r io.ReaderAt) string {
	f, err := elf.NewFile(r)
	if err != nil {
		return ""
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, min(p.Filesz, 4096))
			if _, err := p.ReadAt(b, 0); err != nil && err != io.EOF {
				return ""
			}
			name, _, _ := strings.Cut(string(b), "\x00")
			return name
		}
	}
	return ""
}

// Every program of this system has the interpreter that debug/elf finds.
func TestInterpreterOfPrograms(t *testing.T) {
	n := 0
	files, err := filepath.Glob("/usr/bin/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		st, err := os.Stat(file)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		got, err := interpreter(file)
		if err != nil {
			if !os.IsPermission(err) {
				t.Error(err)
			}
			continue
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := oracle(f); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
		f.Close()
		if got != "" {
			n++
		}
	}
	if n == 0 {
		t.Error("no program has an interpreter")
	}
	for _, none := range []string{"/dev/null", "/etc", "elf_test.go"} {
		if got, err := interpreter(none); got != "" {
			t.Errorf("%s: %q, %v", none, got, err)
		}
	}
	if _, err := interpreter("/nothing"); !missing(err) {
		t.Errorf("error %v", err)
	}
}

func FuzzInterpreter(f *testing.F) {
	for _, file := range []string{"/bin/true", "/bin/sh"} {
		if b, err := os.ReadFile(file); err == nil {
			f.Add(b[:min(len(b), 2048)])
		}
	}
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := elfInterpreter(bytes.NewReader(b))
		if len(got) > 4096 || strings.ContainsRune(got, 0) {
			t.Errorf("%q is no path", got)
		}
		if got == "" {
			return
		}
		// debug/elf also looks at sections, which cost it seconds where a
		// header claims many.
		b = bytes.Clone(b)
		if b[4] == byte(elf.ELFCLASS64) {
			clear(b[40:48])
			clear(b[60:64])
		} else {
			clear(b[32:36])
			clear(b[48:52])
		}
		if want := oracle(bytes.NewReader(b)); want != "" && got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
