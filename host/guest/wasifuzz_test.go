package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Where the module of FuzzWASI has what in its memory: bytes of the fuzzer's, vectors of
// buffers, names, and the program.
const (
	fuzzBytes   = 0
	fuzzVectors = 1024
	fuzzNames   = 2048
	fuzzProgram = 8192
	fuzzImage   = 16384 // all of this is read from standard input
	fuzzRecord  = 1 + 8*9
)

var fuzzedNames = []string{
	"", ".", "..", "d", "d/e", "f", "new", "d/new", "/", "/d", "../outside/secret", "out/secret", "abs/secret", "in/../../outside/secret",
	"d/../..", "in", "out", "abs", "f/", "d//e/.", strings.Repeat("d/../", 200) + "f", "a\x00b", "\xff",
}

// fuzzedWASI is a command that reads a program, calls the functions of preview 1 as it
// says, and writes all of its memory to its standard output.
func fuzzedWASI(fns []hostFunc) []byte {
	a := &asm{}
	ids := make([]uint32, len(fns))
	read, write := uint32(0), uint32(0)
	for i, f := range fns {
		ids[i] = a.imp(wasiModule, f.name, []byte(f.params), []byte(f.results))
		switch f.name {
		case "fd_read":
			read = ids[i]
		case "fd_write":
			write = ids[i]
		}
	}
	a.memory(2)
	const at, all = 60000, 60008
	vector := func(ptr, n uint32) []byte {
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, ptr), n)
	}
	a.data(at, cat(vector(0, fuzzImage), vector(0, 2*wasmPage)))
	const i, end = 0, 1
	body := []byte{}
	for k, f := range fns {
		var args []byte
		for j, p := range f.params {
			args = cat(args, get(i), op(0x29, 0), u(fuzzProgram+1+8*uint32(j)))
			if p == i32 {
				args = cat(args, op(0xa7))
			}
		}
		call := cat(args, callf(ids[k]))
		if len(f.results) > 0 {
			call = cat(call, drop)
		}
		body = cat(body, get(i), load8(fuzzProgram), i32c(int32(k)), op(0x46, 0x04, 0x40), call, op(0x0b))
	}
	a.export("_start", 0, a.fn(nil, nil, op(0x7f, 0x7f),
		i32c(0), i32c(at), i32c(1), i32c(at+20), callf(read), drop,
		i32c(fuzzImage-4), load32(0), set(end),
		loop(body, get(i), i32c(fuzzRecord), add32, op(0x22), u(i), get(end), lt32u, brif(0)),
		i32c(1), i32c(all), i32c(1), i32c(at+20), callf(write), drop))
	return a.bytes()
}

// fuzzedProgram makes plausible and wild calls out of any bytes.
func fuzzedProgram(raw []byte, fns []hostFunc) []byte {
	image := make([]byte, fuzzImage)
	copy(image[fuzzBytes:fuzzVectors], raw)
	for k := range 64 {
		binary.LittleEndian.PutUint32(image[fuzzVectors+8*k:], uint32(fuzzNames+64*k))
		binary.LittleEndian.PutUint32(image[fuzzVectors+8*k+4:], uint32(k))
	}
	names := make([]int, len(fuzzedNames))
	at := fuzzNames
	for k, name := range fuzzedNames {
		names[k] = at
		at += copy(image[at:], name)
	}
	next := func() byte {
		if len(raw) == 0 {
			return 0
		}
		b := raw[0]
		raw = raw[1:]
		return b
	}
	n := 0
	for ; len(raw) > 0 && n < 80; n++ {
		record := image[fuzzProgram+n*fuzzRecord:]
		record[0] = next() % byte(len(fns))
		f := fns[record[0]]
		length := -1
		for j := range f.params {
			b := next()
			v, more := uint64(0), uint64(b>>3)
			switch {
			case length >= 0 && b != 255:
				v, length = uint64(length), -1
			case j == 0 && b < 224: // most often a descriptor
				v = uint64(b % 8)
			default:
				switch b % 8 {
				case 0, 1:
					v = more
				case 2, 3:
					k := int(more) % len(names)
					v, length = uint64(names[k]), len(fuzzedNames[k])
				case 4:
					v = fuzzVectors + more*8
				case 5:
					v = fuzzBytes + more*32
				case 6:
					v = 1 << (more * 2)
				case 7:
					v = -more - 1
				}
			}
			binary.LittleEndian.PutUint64(record[1+8*j:], v)
		}
	}
	binary.LittleEndian.PutUint32(image[fuzzImage-4:], uint32(n*fuzzRecord))
	return image
}

// FuzzWASI makes whatever calls of preview 1 with whatever descriptors, addresses, lengths
// and names, in a folder of the guest's and in one that is only to be read. Nothing that
// is not the guest's is changed or read, no call ends by a fault of the host or goes on after its deadline,
// and nothing stays open.
func FuzzWASI(f *testing.F) {
	const secret = "not for guests"
	fns := wasiFuncs()
	m := load(f, newEngine(f), Spec{Wasm: fuzzedWASI(fns), Fuel: 1e9})
	index := map[string]byte{}
	for k, fn := range fns {
		index[fn.name] = byte(k)
	}
	open := []byte{index["path_open"], 3, 1, 2 | 5<<3, 0, 8, 6 | 1<<3, 0, 0, 4}
	for _, calls := range [][]byte{
		{index["fd_prestat_get"], 3, 4, index["fd_readdir"], 3, 5, 7 << 3, 0, 4},
		cat(open, []byte{index["fd_read"], 5, 4, 2 << 3, 4, index["fd_pread"], 5, 4, 1 << 3, 0, 4, index["fd_renumber"], 5, 1}),
		cat(open, open, []byte{index["fd_close"], 5, index["fd_seek"], 6, 7, 0, 4, index["fd_filestat_get"], 6, 5}),
		{index["poll_oneoff"], 5, 5, 1 << 3, 5, index["fd_write"], 1, 4, 31 << 3, 4, index["random_get"], 5, 31 << 3},
		{index["path_symlink"], 2 | 16<<3, 0, 3, 2 | 6<<3, 0, index["path_rename"], 3, 2 | 6<<3, 0, 4, 2 | 5<<3, 0},
		{index["path_link"], 3, 0, 2 | 11<<3, 0, 3, 2 | 6<<3, 0, index["path_readlink"], 3, 2 | 17<<3, 0, 5, 31 << 3, 4},
		{index["fd_write"], 1, 7, 1 << 3, 4, index["fd_read"], 0, 4, 1 << 3, 7, index["fd_readdir"], 3, 7, 1 << 3, 0, 7},
		{index["path_unlink_file"], 4, 2 | 5<<3, 0, index["path_filestat_set_times"], 4, 0, 2 | 5<<3, 0, 1, 1, 1 << 3},
	} {
		f.Add(calls)
	}
	files := func() int {
		open, _ := os.ReadDir("/proc/self/fd")
		return len(open)
	}
	most := files() + 64
	f.Fuzz(func(t *testing.T, raw []byte) {
		top := t.TempDir()
		mine, theirs := filepath.Join(top, "mine"), filepath.Join(top, "theirs")
		for _, dir := range []string{mine + "/d/e", theirs + "/d/e", top + "/outside"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range map[string]string{mine + "/f": "mine", theirs + "/f": "theirs", top + "/outside/secret": secret} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{mine, theirs} {
			for name, to := range map[string]string{"out": "../outside", "abs": top + "/outside", "in": "d/e"} {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := fuzzedTree(t, theirs) + fuzzedTree(t, top+"/outside")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var out, errs bytes.Buffer
		began := time.Now()
		_, _, err := m.Run(ctx, Command{
			Args: []string{"fuzz"}, Env: []string{"A=b"}, Stdin: bytes.NewReader(fuzzedProgram(raw, fns)), Stdout: &out, Stderr: &errs,
			Dirs: []Mount{{Guest: "/mine", Host: mine}, {Guest: "/theirs", Host: theirs, ReadOnly: true}},
		})
		if e, ok := errors.AsType[*Error](err); err != nil && (!ok || e.Kind != DeadlineMet && e.Kind != FuelUsed) {
			t.Errorf("%x ended with %v", raw, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%x took %v", raw, took)
		}
		if after := fuzzedTree(t, theirs) + fuzzedTree(t, top+"/outside"); after != before {
			t.Errorf("%x changed what is not its own:\n%s\n%s", raw, before, after)
		}
		if strings.Contains(out.String()+errs.String()+fuzzedTree(t, mine), secret) {
			t.Errorf("%x read what is not its own", raw)
		}
		if n := files(); n > most {
			t.Errorf("%x: %d descriptors are open", raw, n)
		}
	})
}

// fuzzedTree is all that is in a folder.
func fuzzedTree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(strings.Join([]string{path, info.Mode().String(), info.ModTime().String(), "\n"}, " "))
		if info.Mode().IsRegular() && info.Size() < 1<<20 {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
