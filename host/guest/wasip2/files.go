package wasip2

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/guest/component"
)

// errorCodes are those of wasi:filesystem, in its order.
var errorCodes = []string{
	"access", "would-block", "already", "bad-descriptor", "busy", "deadlock", "quota", "exist", "file-too-large",
	"illegal-byte-sequence", "in-progress", "interrupted", "invalid", "io", "is-directory", "loop", "too-many-links",
	"message-size", "name-too-long", "no-device", "no-entry", "no-lock", "insufficient-memory", "insufficient-space",
	"not-directory", "not-empty", "not-recoverable", "unsupported", "no-tty", "no-such-device", "overflow", "not-permitted",
	"pipe", "read-only", "invalid-seek", "text-file-busy", "cross-device",
}

// errnos are the errors of the system that have a code.
var errnos = map[syscall.Errno]string{
	syscall.EACCES: "access", syscall.EAGAIN: "would-block", syscall.EBADF: "bad-descriptor", syscall.EBUSY: "busy",
	syscall.EDQUOT: "quota", syscall.EEXIST: "exist", syscall.EFBIG: "file-too-large", syscall.EILSEQ: "illegal-byte-sequence",
	syscall.EINTR: "interrupted", syscall.EINVAL: "invalid", syscall.EIO: "io", syscall.EISDIR: "is-directory",
	syscall.ELOOP: "loop", syscall.EMLINK: "too-many-links", syscall.ENAMETOOLONG: "name-too-long", syscall.ENODEV: "no-device",
	syscall.ENOENT: "no-entry", syscall.ENOLCK: "no-lock", syscall.ENOMEM: "insufficient-memory", syscall.ENOSPC: "insufficient-space",
	syscall.ENOTDIR: "not-directory", syscall.ENOTEMPTY: "not-empty", syscall.ENOTSUP: "unsupported", syscall.ENXIO: "no-such-device",
	syscall.EOVERFLOW: "overflow", syscall.EPERM: "not-permitted", syscall.EPIPE: "pipe", syscall.EROFS: "read-only",
	syscall.ESPIPE: "invalid-seek", syscall.ETXTBSY: "text-file-busy", syscall.EXDEV: "cross-device", syscall.EMFILE: "quota", syscall.ENFILE: "quota",
}

// code makes the result of an error.
func code(err error) component.Case {
	name := "io"
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		if n, ok := errnos[no]; ok {
			name = n
		}
	} else if errors.Is(err, errTooManyFiles) {
		name = "quota"
	} else if strings.Contains(err.Error(), "escapes") { // what os.Root says
		name = "not-permitted"
	} else if errors.Is(err, fs.ErrInvalid) {
		name = "invalid"
	}
	return component.Bad(component.Case{Index: slices.Index(errorCodes, name)})
}

// done makes the result of what answers nothing but an error.
func done(err error) any {
	if err != nil {
		return code(err)
	}
	return component.OK
}

// openFile is a file or a folder that a guest opened, or a preopened folder,
// of which file is nil.
type openFile struct {
	root  *os.Root
	path  string // in root
	ro    bool   // the folder
	file  *os.File
	dir   bool
	flags uint32
	refs  int // handles: streams go on when their descriptor is dropped
}

// release gives up one handle of a file.
func (s *State) release(f *openFile) {
	if f.refs--; f.refs == 0 && f.file != nil {
		f.file.Close()
		s.files--
	}
}

// Flags of descriptors.
const (
	flagRead   = 1
	flagWrite  = 2
	flagSync   = 4 | 8 | 16
	flagMutate = 32
)

// Flags of opening.
const (
	openCreate    = 1
	openDirectory = 2
	openExclusive = 4
	openTruncate  = 8
)

// step is what every operation on files costs.
func (s *State) step() { s.Host.Charge(16_000) }

// descriptor answers what a handle opened.
func (s *State) descriptor(v any) *openFile {
	h := s.get(v, preopen, opened)
	if h.kind == opened {
		return h.file
	}
	d := s.Host.Dirs[h.n]
	flags := uint32(flagRead | flagMutate)
	if d.ReadOnly {
		flags = flagRead
	}
	return &openFile{root: d.Root, path: ".", ro: d.ReadOnly, dir: true, flags: flags}
}

// in answers the name in f's root of a path that is relative to f. No path leads
// out of f by its words, and os.Root lets no link lead out of the root.
func (f *openFile) in(name string) (string, error) {
	if !f.dir {
		return "", syscall.ENOTDIR
	}
	if name == "" {
		return "", syscall.ENOENT
	}
	if strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 {
		return "", syscall.EPERM
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return "", syscall.EPERM
			}
		default:
			depth++
		}
	}
	joined := f.path + "/" + name
	if f.path == "." {
		joined = name
	}
	return joined, nil
}

// at is a function on a path in a folder.
func at(do func(s *State, f *openFile, name string, args []any) any) func(*State, []any) any {
	return func(s *State, args []any) any {
		f := s.descriptor(args[0])
		s.step()
		i := 1
		if _, ok := args[1].(uint32); ok { // path-flags
			i = 2
		}
		name, err := f.in(args[i].(string))
		if err != nil {
			return code(err)
		}
		return do(s, f, name, args)
	}
}

// change is at for what writes.
func change(do func(s *State, f *openFile, name string, args []any) error) func(*State, []any) any {
	return at(func(s *State, f *openFile, name string, args []any) any {
		if f.ro {
			return code(syscall.EROFS)
		}
		return done(do(s, f, name, args))
	})
}

// file is a function on an open file.
func file(do func(s *State, f *openFile, args []any) any) func(*State, []any) any {
	return func(s *State, args []any) any {
		f := s.descriptor(args[0])
		s.step()
		if f.dir {
			return code(syscall.EISDIR)
		}
		return do(s, f, args)
	}
}

// names reads those of a folder, each of which costs.
func (s *State) names(d *os.File) (all []string, err error) {
	for {
		some, err := d.Readdirnames(1000)
		s.Host.Charge(uint64(len(some)) * 1000)
		for _, name := range some {
			s.Host.Hold(uint64(len(name)) + 16)
		}
		all = append(all, some...)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *State) open(f *openFile, name string, follow bool, how, flags uint32) (*openFile, error) {
	if s.files >= mostFiles {
		return nil, errTooManyFiles
	}
	writes := flags&flagWrite != 0 || how&(openCreate|openTruncate) != 0
	if f.ro && writes {
		return nil, syscall.EROFS
	}
	// O_NONBLOCK: opening a FIFO would wait for its other end.
	mode := syscall.O_NONBLOCK | syscall.O_NOCTTY
	switch {
	case flags&flagWrite != 0 && flags&flagRead != 0:
		mode |= os.O_RDWR
	case writes:
		mode |= os.O_WRONLY
	}
	for _, m := range [][2]int{{openCreate, os.O_CREATE}, {openExclusive, os.O_EXCL}, {openTruncate, os.O_TRUNC}, {openDirectory, syscall.O_DIRECTORY}} {
		if int(how)&m[0] != 0 {
			mode |= m[1]
		}
	}
	if flags&flagSync != 0 {
		mode |= os.O_SYNC
	}
	if !follow {
		mode |= syscall.O_NOFOLLOW
	}
	opened, err := f.root.OpenFile(name, mode, 0o666)
	if err != nil {
		return nil, err
	}
	st, err := opened.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = syscall.EPERM
	}
	if err != nil {
		opened.Close()
		return nil, err
	}
	s.files++
	return &openFile{root: f.root, path: path.Clean(name), ro: f.ro, file: opened, dir: st.IsDir(), flags: flags &^ flagMutate, refs: 1}, nil
}

// typeOf answers a descriptor-type.
func typeOf(m fs.FileMode) component.Case {
	i := 0
	switch {
	case m.IsRegular():
		i = 6
	case m.IsDir():
		i = 3
	case m&fs.ModeSymlink != 0:
		i = 5
	case m&fs.ModeNamedPipe != 0:
		i = 4
	case m&fs.ModeSocket != 0:
		i = 7
	case m&fs.ModeCharDevice != 0:
		i = 2
	case m&fs.ModeDevice != 0:
		i = 1
	}
	return component.Case{Index: i}
}

func identity(st fs.FileInfo) (dev, ino, links uint64) {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(sys.Dev), uint64(sys.Ino), uint64(sys.Nlink)
	}
	return 0, 0, 1
}

func statResult(st fs.FileInfo, err error) any {
	if err != nil {
		return code(err)
	}
	_, _, links := identity(st)
	at := component.Some(datetime(st.ModTime()))
	return component.Good([]any{typeOf(st.Mode()), links, uint64(max(st.Size(), 0)), at, at, at})
}

func hashResult(st fs.FileInfo, err error) any {
	if err != nil {
		return code(err)
	}
	dev, ino, _ := identity(st)
	h := fnv.New128a()
	h.Write(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, dev), ino))
	sum := h.Sum(nil)
	return component.Good([]any{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])})
}

// stat looks at what is open.
func (f *openFile) stat() (fs.FileInfo, error) {
	if f.file != nil {
		return f.file.Stat()
	}
	return f.root.Stat(f.path)
}

// look looks at a name; path-flags say whether a link is followed.
func (f *openFile) look(name string, flags any) (fs.FileInfo, error) {
	if flags.(uint32)&1 != 0 {
		return f.root.Stat(name)
	}
	return f.root.Lstat(name)
}

// timestamp answers a time to set; the zero time changes nothing.
func timestamp(v any) time.Time {
	c := v.(component.Case)
	switch c.Index {
	case 1:
		return time.Now()
	case 2:
		f := c.Value.([]any)
		return time.Unix(int64(min(f[0].(uint64), 1<<40)), int64(f[1].(uint64)))
	}
	return time.Time{}
}

func position(v any) (int64, error) {
	if n := v.(uint64); n <= math.MaxInt64 {
		return int64(n), nil
	}
	return 0, syscall.EINVAL
}

func fileFuncs() []Func {
	const types = "wasi:filesystem/types"
	stream := func(k kind, appends bool) func(s *State, args []any) any {
		return file(func(s *State, f *openFile, args []any) any {
			h := handle{kind: k, file: f, at: -1}
			if !appends {
				var err error
				if h.at, err = position(args[1]); err != nil {
					return code(err)
				}
			}
			if k == fileOutput && f.flags&flagWrite == 0 || k == fileInput && f.flags&flagRead == 0 {
				return code(syscall.EBADF)
			}
			f.refs++
			return component.Good(s.add(h))
		})
	}
	sync := func(s *State, args []any) any {
		f := s.descriptor(args[0])
		s.step()
		if f.file == nil {
			return component.OK
		}
		return done(f.file.Sync())
	}
	const method = "[method]descriptor."
	return []Func{
		{"wasi:filesystem/preopens", "get-directories", "func() -> list<tuple<own<descriptor>, string>>", func(s *State, _ []any) any {
			out := []any{}
			for i, d := range s.Host.Dirs {
				out = append(out, []any{s.add(handle{kind: preopen, n: i}), d.Guest})
			}
			return out
		}},
		{types, "filesystem-error-code", "func(err: borrow<io-error>) -> option<error-code>", func(s *State, args []any) any {
			s.get(args[0], failed)
			return component.None
		}},
		{types, method + "read-via-stream", "func(self: borrow<descriptor>, offset: u64) -> result<own<input-stream>, error-code>", stream(fileInput, false)},
		{types, method + "write-via-stream", "func(self: borrow<descriptor>, offset: u64) -> result<own<output-stream>, error-code>", stream(fileOutput, false)},
		{types, method + "append-via-stream", "func(self: borrow<descriptor>) -> result<own<output-stream>, error-code>", stream(fileOutput, true)},
		{types, method + "advise", "func(self: borrow<descriptor>, offset: u64, length: u64, advice: advice) -> result<_, error-code>", file(func(*State, *openFile, []any) any { return component.OK })},
		{types, method + "sync-data", "func(self: borrow<descriptor>) -> result<_, error-code>", sync},
		{types, method + "sync", "func(self: borrow<descriptor>) -> result<_, error-code>", sync},
		{types, method + "get-flags", "func(self: borrow<descriptor>) -> result<descriptor-flags, error-code>", func(s *State, args []any) any {
			return component.Good(s.descriptor(args[0]).flags)
		}},
		{types, method + "get-type", "func(self: borrow<descriptor>) -> result<descriptor-type, error-code>", func(s *State, args []any) any {
			st, err := s.descriptor(args[0]).stat()
			if err != nil {
				return code(err)
			}
			return component.Good(typeOf(st.Mode()))
		}},
		{types, method + "set-size", "func(self: borrow<descriptor>, size: u64) -> result<_, error-code>", file(func(s *State, f *openFile, args []any) any {
			n, err := position(args[1])
			if err == nil && f.ro {
				err = syscall.EROFS
			}
			if err != nil {
				return code(err)
			}
			return done(f.file.Truncate(n))
		})},
		{types, method + "set-times", "func(self: borrow<descriptor>, data-access-timestamp: new-timestamp, data-modification-timestamp: new-timestamp) -> result<_, error-code>", func(s *State, args []any) any {
			f := s.descriptor(args[0])
			s.step()
			if f.ro {
				return code(syscall.EROFS)
			}
			return done(f.root.Chtimes(f.path, timestamp(args[1]), timestamp(args[2])))
		}},
		{types, method + "read", "func(self: borrow<descriptor>, length: u64, offset: u64) -> result<tuple<list<u8>, bool>, error-code>", file(func(s *State, f *openFile, args []any) any {
			off, err := position(args[2])
			if err == nil && f.flags&flagRead == 0 {
				err = syscall.EBADF
			}
			if err != nil {
				return code(err)
			}
			p := make([]byte, min(args[1].(uint64), mostPiece))
			s.Host.Charge(uint64(len(p)))
			n, err := f.file.ReadAt(p, off)
			if err != nil && err != io.EOF {
				return code(err)
			}
			return component.Good([]any{p[:n], err == io.EOF})
		})},
		{types, method + "write", "func(self: borrow<descriptor>, buffer: list<u8>, offset: u64) -> result<u64, error-code>", file(func(s *State, f *openFile, args []any) any {
			off, err := position(args[2])
			if err == nil && f.flags&flagWrite == 0 {
				err = syscall.EBADF
			}
			if err != nil {
				return code(err)
			}
			p := args[1].([]byte)
			p = p[:min(len(p), mostPiece)]
			s.Host.Charge(uint64(len(p)))
			n, err := f.file.WriteAt(p, off)
			if n == 0 && err != nil {
				return code(err)
			}
			return component.Good(uint64(n))
		})},
		{types, method + "read-directory", "func(self: borrow<descriptor>) -> result<own<directory-entry-stream>, error-code>", func(s *State, args []any) any {
			f := s.descriptor(args[0])
			s.step()
			if !f.dir {
				return code(syscall.ENOTDIR)
			}
			d, err := f.root.Open(f.path)
			if err != nil {
				return code(err)
			}
			names, err := s.names(d)
			d.Close()
			if err != nil {
				return code(err)
			}
			slices.Sort(names)
			return component.Good(s.add(handle{kind: entries, file: f, left: names}))
		}},
		{types, "[method]directory-entry-stream.read-directory-entry", "func(self: borrow<directory-entry-stream>) -> result<option<directory-entry>, error-code>", func(s *State, args []any) any {
			h := s.get(args[0], entries)
			for len(h.left) > 0 {
				name := h.left[0]
				h.left = h.left[1:]
				s.Host.Charge(1000)
				st, err := h.file.root.Lstat(filepath.Join(h.file.path, name))
				if errors.Is(err, fs.ErrNotExist) {
					continue // it was removed meanwhile
				}
				if err != nil {
					return code(err)
				}
				return component.Good(component.Some([]any{typeOf(st.Mode()), strings.ToValidUTF8(name, "\uFFFD")}))
			}
			return component.Good(component.None)
		}},
		{types, method + "create-directory-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			return f.root.Mkdir(name, 0o777)
		})},
		{types, method + "stat", "func(self: borrow<descriptor>) -> result<descriptor-stat, error-code>", func(s *State, args []any) any {
			s.step()
			return statResult(s.descriptor(args[0]).stat())
		}},
		{types, method + "stat-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string) -> result<descriptor-stat, error-code>", at(func(_ *State, f *openFile, name string, args []any) any {
			return statResult(f.look(name, args[1]))
		})},
		{types, method + "set-times-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string, data-access-timestamp: new-timestamp, data-modification-timestamp: new-timestamp) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, args []any) error {
			return f.root.Chtimes(name, timestamp(args[3]), timestamp(args[4]))
		})},
		{types, method + "link-at", "func(self: borrow<descriptor>, old-path-flags: path-flags, old-path: string, new-descriptor: borrow<descriptor>, new-path: string) -> result<_, error-code>", change(func(s *State, f *openFile, name string, args []any) error {
			return f.both(s, args, 3, func(to string) error { return f.root.Link(name, to) })
		})},
		{types, method + "rename-at", "func(self: borrow<descriptor>, old-path: string, new-descriptor: borrow<descriptor>, new-path: string) -> result<_, error-code>", change(func(s *State, f *openFile, name string, args []any) error {
			return f.both(s, args, 2, func(to string) error { return f.root.Rename(name, to) })
		})},
		{types, method + "open-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string, open-flags: open-flags, flags: descriptor-flags) -> result<own<descriptor>, error-code>", at(func(s *State, f *openFile, name string, args []any) any {
			o, err := s.open(f, name, args[1].(uint32)&1 != 0, args[3].(uint32), args[4].(uint32))
			if err != nil {
				return code(err)
			}
			if o.dir && !o.ro {
				o.flags |= flagMutate
			}
			return component.Good(s.add(handle{kind: opened, file: o}))
		})},
		{types, method + "readlink-at", "func(self: borrow<descriptor>, path: string) -> result<string, error-code>", at(func(_ *State, f *openFile, name string, _ []any) any {
			to, err := f.root.Readlink(name)
			if err == nil && filepath.IsAbs(to) {
				err = syscall.EPERM
			}
			if err != nil {
				return code(err)
			}
			return component.Good(strings.ToValidUTF8(to, "\uFFFD"))
		})},
		{types, method + "remove-directory-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			st, err := f.root.Lstat(name)
			if err == nil && !st.IsDir() {
				err = syscall.ENOTDIR
			}
			if err != nil {
				return err
			}
			return f.root.Remove(name)
		})},
		{types, method + "unlink-file-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			st, err := f.root.Lstat(name)
			if err == nil && st.IsDir() {
				err = syscall.EISDIR
			}
			if err != nil {
				return err
			}
			return f.root.Remove(name)
		})},
		// A link that leads out is not followed by os.Root, but what else reads the
		// folder might follow it.
		{types, method + "symlink-at", "func(self: borrow<descriptor>, old-path: string, new-path: string) -> result<_, error-code>", func(s *State, args []any) any {
			f := s.descriptor(args[0])
			s.step()
			target := args[1].(string)
			name, err := f.in(args[2].(string))
			switch {
			case err != nil:
			case f.ro:
				err = syscall.EROFS
			case filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target)):
				err = syscall.EPERM
			default:
				err = f.root.Symlink(target, name)
			}
			return done(err)
		}},
		{types, method + "is-same-object", "func(self: borrow<descriptor>, other: borrow<descriptor>) -> bool", func(s *State, args []any) any {
			a, err := s.descriptor(args[0]).stat()
			b, err2 := s.descriptor(args[1]).stat()
			return err == nil && err2 == nil && os.SameFile(a, b)
		}},
		{types, method + "metadata-hash", "func(self: borrow<descriptor>) -> result<metadata-hash-value, error-code>", func(s *State, args []any) any {
			s.step()
			return hashResult(s.descriptor(args[0]).stat())
		}},
		{types, method + "metadata-hash-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string) -> result<metadata-hash-value, error-code>", at(func(_ *State, f *openFile, name string, args []any) any {
			return hashResult(f.look(name, args[1]))
		})},
	}
}

// both does what has a second path, in the folder that args[i] is.
func (f *openFile) both(s *State, args []any, i int, do func(to string) error) error {
	to := s.descriptor(args[i])
	name, err := to.in(args[i+1].(string))
	switch {
	case err != nil:
		return err
	case to.ro:
		return syscall.EROFS
	case to.root != f.root:
		return syscall.EXDEV
	}
	return do(name)
}
