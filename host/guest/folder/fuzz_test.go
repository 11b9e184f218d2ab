package folder

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// FuzzFolder makes whatever operations a guest could make, on names that lead in and
// out, in two folders: one of its own and one that is only to be read. Afterwards all else
// is as it was, no file that was opened or looked at lies elsewhere, and no link leads
// out.
func FuzzFolder(f *testing.F) {
	for _, seed := range []string{
		"\x00\x00\x00\x0fd/e\x00",
		"\x05\x00a\x00\x05\x00a/b\x00\x09\x00../../f\x00a/b/l\x00\x07\x00a/b/l\x00\x00l\x00", // a link, moved up
		"\x05\x00a\x00\x05\x00a/b\x00\x09\x00../../x\x00a/b/l\x00\x07\x00a/b\x00\x00b\x00",   // a folder with a link, moved up
		"\x05\x00a\x00\x05\x00a/b\x00\x09\x00../../f\x00a/b/l\x00\x08\x00a/b/l\x00\x00l\x00", // another name of a link
		"\x05\x00a\x00\x09\x00..\x00a/up\x00\x09\x00../../x\x00a/up/l\x00",                   // a link by way of a link
		"\x05\x00a\x00\x09\x00n/../../x\x00a/l\x00\x09\x00.\x00a/n\x00",                      // a link by what is a link later
		"\x07\x00out/secret\x00\x00x\x00\x08\x00abs/secret\x00\x00y\x00",
		"\x00\x00\x00\x01out/secret\x00\x02\x00abs/secret\x00\x03\x00in/../../outside/secret\x00",
		"\x06\x00d\x00\x06\x01f\x00\x04\x00\x0a\x00out\x00",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		top, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"mine/d/e", "theirs/d/e", "outside"} {
			if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"mine/f", "theirs/f", "outside/secret"} {
			if err := os.WriteFile(filepath.Join(top, name), []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		planted := map[string]bool{}
		for _, dir := range []string{"mine", "theirs"} {
			for name, to := range map[string]string{"out": "../outside", "abs": filepath.Join(top, "outside"), "in": "d/e"} {
				if err := os.Symlink(to, filepath.Join(top, dir, name)); err != nil {
					t.Fatal(err)
				}
				planted[to] = true
			}
		}
		before := [2]string{listed(t, top, "theirs"), listed(t, top, "outside")}
		run(t, top, program)
		if after := [2]string{listed(t, top, "theirs"), listed(t, top, "outside")}; after != before {
			t.Errorf("%q changed what is not its own:\n%s\n%s", program, before, after)
		}
		// A planted link may have been moved; all others are the guest's.
		err = filepath.WalkDir(filepath.Join(top, "mine"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink == 0 {
				return err
			}
			to, err := os.Readlink(path)
			if err == nil && !planted[to] && leads(top, path, to) {
				t.Errorf("%q left the link %s to %s", program, strings.TrimPrefix(path, top), to)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// leads reports whether a link at path to a target leads out of top/mine.
func leads(top, path, to string) bool {
	mine := filepath.Join(top, "mine")
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(to, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
		default:
			dir = filepath.Join(dir, part)
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				dir = real
			}
		}
		if dir != mine && !strings.HasPrefix(dir, mine+"/") {
			return true
		}
	}
	return false
}

// listed is all that is in a folder.
func listed(t *testing.T, top, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(filepath.Join(top, dir), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(path)
		to, _ := os.Readlink(path)
		b.WriteString(strings.Join([]string{path, info.Mode().String(), info.ModTime().String(), string(text), to, "\n"}, " "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// run makes the operations of a program: each is a byte, the number of an open file, and
// names that end with a zero byte.
func run(t *testing.T, top string, program []byte) {
	t.Helper()
	secret, err := os.Stat(filepath.Join(top, "outside/secret"))
	if err != nil {
		t.Fatal(err)
	}
	outside, err := os.Stat(filepath.Join(top, "outside"))
	if err != nil {
		t.Fatal(err)
	}
	looked := func(st fs.FileInfo, err error) {
		if err == nil && (os.SameFile(st, secret) || os.SameFile(st, outside)) {
			t.Errorf("%q reached %s", program, st.Name())
		}
	}
	var files []*File
	for _, d := range []Folder{{Guest: "/mine"}, {Guest: "/theirs", ReadOnly: true}} {
		root, err := os.OpenRoot(filepath.Join(top, d.Guest))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		d.Root = root
		files = append(files, d.File())
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	next := func() byte {
		if len(program) == 0 {
			return 0
		}
		b := program[0]
		program = program[1:]
		return b
	}
	handle := func() *File { return files[int(next())%len(files)] }
	name := func() string {
		text, rest, _ := strings.Cut(string(program), "\x00")
		program = []byte(rest)
		return text
	}
	for range 64 {
		if len(program) == 0 {
			return
		}
		op, f := next(), handle()
		err := error(nil)
		switch op % 16 {
		case 0, 1:
			how, flags := uint32(next())&15, uint32(next())&31
			var o *File
			if o, err = f.Open(name(), op%2 == 0, how, flags); err == nil {
				looked(o.Stat())
				files = append(files, o)
			}
		case 2, 3:
			var st fs.FileInfo
			st, err = f.StatAt(name(), op%2 == 0)
			looked(st, err)
		case 4:
			_, err = f.Stat()
		case 5:
			err = f.Mkdir(name())
		case 6:
			err = f.Remove(name(), op&16 != 0)
		case 7:
			from, dir := name(), handle()
			err = f.Rename(from, dir, name())
		case 8:
			from, dir := name(), handle()
			err = f.Link(from, op&16 != 0, dir, name())
		case 9:
			to := name()
			err = f.Symlink(to, name())
		case 10:
			_, err = f.Readlink(name())
		case 11:
			err = f.SetTimesAt(name(), op&16 != 0, time.Unix(1, 0), time.Unix(2, 0))
		case 12:
			err = f.SetTimes(time.Unix(1, 0), time.Unix(2, 0))
		case 13:
			_, err = f.WriteAt([]byte("written"), int64(int8(next())))
			if _, _, err2 := f.Append([]byte("more")); err == nil {
				err = err2
			}
		case 14:
			_, err = f.ReadAt(make([]byte, 8), int64(int8(next())))
			if err2 := f.Truncate(int64(int8(next()))); err == nil {
				err = err2
			}
		case 15:
			var dir *os.File
			if dir, err = f.Entries(); err == nil {
				looked(dir.Stat())
				_, err = dir.Readdirnames(-1)
				dir.Close()
			}
		}
		if err != nil && err != io.EOF {
			if _, number := Error(err); number == 29 && !errors.Is(err, syscall.EIO) {
				t.Errorf("%v is no error that a guest is told", err)
			}
		}
	}
}
