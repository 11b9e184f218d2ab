package wasip2

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/guest/component"
	"github.com/toold/toold/host/guest/folder"
)

// errorCodes are the cases of wasi:filesystem's error-code, in order.
var errorCodes = []string{
	"access", "would-block", "already", "bad-descriptor", "busy", "deadlock", "quota", "exist", "file-too-large",
	"illegal-byte-sequence", "in-progress", "interrupted", "invalid", "io", "is-directory", "loop", "too-many-links",
	"message-size", "name-too-long", "no-device", "no-entry", "no-lock", "insufficient-memory", "insufficient-space",
	"not-directory", "not-empty", "not-recoverable", "unsupported", "no-tty", "no-such-device", "overflow", "not-permitted",
	"pipe", "read-only", "invalid-seek", "text-file-busy", "cross-device",
}

// code returns the error-code result for an error.
func code(err error) component.Case {
	name, _ := folder.Error(err)
	return component.Bad(component.Case{Index: slices.Index(errorCodes, name)})
}

// done returns the result of a function that returns only an error.
func done(err error) any {
	if err != nil {
		return code(err)
	}
	return component.OK
}

// openFile is a file that a guest opened, or a preopened folder, whose refs is 0.
type openFile struct {
	*folder.File
	refs int // handles: streams remain valid after their descriptor is dropped
}

// release releases one handle of a file.
func (s *State) release(f *openFile) {
	if f.refs--; f.refs == 0 {
		f.Close()
		s.files--
	}
}

// step charges the fixed cost of a file operation.
func (s *State) step() { s.Host.Charge(16_000) }

// descriptor returns the file that a handle refers to.
func (s *State) descriptor(v any) *openFile {
	h := s.get(v, preopen, opened)
	if h.kind == opened {
		return h.file
	}
	return &openFile{File: s.Host.Dirs[h.n].File()}
}

// at adapts a function that operates on a path in a folder.
func at(do func(s *State, f *openFile, name string, args []any) any) func(*State, []any) any {
	return func(s *State, args []any) any {
		f := s.descriptor(args[0])
		s.step()
		i := 1
		if _, ok := args[1].(uint32); ok { // path-flags
			i = 2
		}
		return do(s, f, args[i].(string), args)
	}
}

// change is at for functions that return nothing but an error.
func change(do func(s *State, f *openFile, name string, args []any) error) func(*State, []any) any {
	return at(func(s *State, f *openFile, name string, args []any) any { return done(do(s, f, name, args)) })
}

// file adapts a function that operates on an open file.
func file(do func(s *State, f *openFile, args []any) any) func(*State, []any) any {
	return func(s *State, args []any) any {
		f := s.descriptor(args[0])
		s.step()
		if f.Dir {
			return code(syscall.EISDIR)
		}
		return do(s, f, args)
	}
}

// names reads the names in a folder and charges for each.
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
	if s.files >= folder.MostFiles {
		return nil, folder.ErrTooManyFiles
	}
	opened, err := f.Open(name, follow, how, flags)
	if err != nil {
		return nil, err
	}
	s.files++
	return &openFile{opened, 1}, nil
}

// typeOf returns the descriptor-type.
func typeOf(m fs.FileMode) component.Case { return component.Case{Index: int(folder.KindOf(m))} }

func statResult(st fs.FileInfo, err error) any {
	if err != nil {
		return code(err)
	}
	_, _, links := folder.Identity(st)
	at := component.Some(datetime(st.ModTime()))
	return component.Good([]any{typeOf(st.Mode()), links, uint64(max(st.Size(), 0)), at, at, at})
}

func hashResult(st fs.FileInfo, err error) any {
	if err != nil {
		return code(err)
	}
	dev, ino, _ := folder.Identity(st)
	h := fnv.New128a()
	h.Write(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, dev), ino))
	sum := h.Sum(nil)
	return component.Good([]any{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])})
}

// follows reads path-flags.
func follows(flags any) bool { return flags.(uint32)&1 != 0 }

// timestamp returns the time to set; the zero time leaves the value unchanged.
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
			if k == fileOutput && f.Flags&folder.Write == 0 || k == fileInput && f.Flags&folder.Read == 0 {
				return code(syscall.EBADF)
			}
			f.refs++
			return component.Good(s.add(h))
		})
	}
	sync := func(s *State, args []any) any {
		s.step()
		return done(s.descriptor(args[0]).Sync())
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
			return component.Good(s.descriptor(args[0]).Flags)
		}},
		{types, method + "get-type", "func(self: borrow<descriptor>) -> result<descriptor-type, error-code>", func(s *State, args []any) any {
			st, err := s.descriptor(args[0]).Stat()
			if err != nil {
				return code(err)
			}
			return component.Good(typeOf(st.Mode()))
		}},
		{types, method + "set-size", "func(self: borrow<descriptor>, size: u64) -> result<_, error-code>", file(func(s *State, f *openFile, args []any) any {
			n, err := position(args[1])
			if err != nil {
				return code(err)
			}
			return done(f.Truncate(n))
		})},
		{types, method + "set-times", "func(self: borrow<descriptor>, data-access-timestamp: new-timestamp, data-modification-timestamp: new-timestamp) -> result<_, error-code>", func(s *State, args []any) any {
			s.step()
			return done(s.descriptor(args[0]).SetTimes(timestamp(args[1]), timestamp(args[2])))
		}},
		{types, method + "read", "func(self: borrow<descriptor>, length: u64, offset: u64) -> result<tuple<list<u8>, bool>, error-code>", file(func(s *State, f *openFile, args []any) any {
			off, err := position(args[2])
			if err != nil {
				return code(err)
			}
			p := make([]byte, min(args[1].(uint64), mostPiece))
			s.Host.Charge(uint64(len(p)))
			n, err := f.ReadAt(p, off)
			if err != nil && err != io.EOF {
				return code(err)
			}
			return component.Good([]any{p[:n], err == io.EOF})
		})},
		{types, method + "write", "func(self: borrow<descriptor>, buffer: list<u8>, offset: u64) -> result<u64, error-code>", file(func(s *State, f *openFile, args []any) any {
			off, err := position(args[2])
			if err != nil {
				return code(err)
			}
			p := args[1].([]byte)
			p = p[:min(len(p), mostPiece)]
			s.Host.Charge(uint64(len(p)))
			n, err := f.WriteAt(p, off)
			if n == 0 && err != nil {
				return code(err)
			}
			return component.Good(uint64(n))
		})},
		{types, method + "read-directory", "func(self: borrow<descriptor>) -> result<own<directory-entry-stream>, error-code>", func(s *State, args []any) any {
			f := s.descriptor(args[0])
			s.step()
			d, err := f.Entries()
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
				st, err := h.file.StatAt(name, false)
				if errors.Is(err, fs.ErrNotExist) {
					continue // removed in the meantime
				}
				if err != nil {
					return code(err)
				}
				return component.Good(component.Some([]any{typeOf(st.Mode()), strings.ToValidUTF8(name, "\uFFFD")}))
			}
			return component.Good(component.None)
		}},
		{types, method + "create-directory-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			return f.Mkdir(name)
		})},
		{types, method + "stat", "func(self: borrow<descriptor>) -> result<descriptor-stat, error-code>", func(s *State, args []any) any {
			s.step()
			return statResult(s.descriptor(args[0]).Stat())
		}},
		{types, method + "stat-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string) -> result<descriptor-stat, error-code>", at(func(_ *State, f *openFile, name string, args []any) any {
			return statResult(f.StatAt(name, follows(args[1])))
		})},
		{types, method + "set-times-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string, data-access-timestamp: new-timestamp, data-modification-timestamp: new-timestamp) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, args []any) error {
			return f.SetTimesAt(name, follows(args[1]), timestamp(args[3]), timestamp(args[4]))
		})},
		{types, method + "link-at", "func(self: borrow<descriptor>, old-path-flags: path-flags, old-path: string, new-descriptor: borrow<descriptor>, new-path: string) -> result<_, error-code>", change(func(s *State, f *openFile, name string, args []any) error {
			return f.Link(name, follows(args[1]), s.descriptor(args[3]).File, args[4].(string))
		})},
		{types, method + "rename-at", "func(self: borrow<descriptor>, old-path: string, new-descriptor: borrow<descriptor>, new-path: string) -> result<_, error-code>", change(func(s *State, f *openFile, name string, args []any) error {
			return f.Rename(name, s.descriptor(args[2]).File, args[3].(string))
		})},
		{types, method + "open-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string, open-flags: open-flags, flags: descriptor-flags) -> result<own<descriptor>, error-code>", at(func(s *State, f *openFile, name string, args []any) any {
			o, err := s.open(f, name, follows(args[1]), args[3].(uint32), args[4].(uint32))
			if err != nil {
				return code(err)
			}
			return component.Good(s.add(handle{kind: opened, file: o}))
		})},
		{types, method + "readlink-at", "func(self: borrow<descriptor>, path: string) -> result<string, error-code>", at(func(_ *State, f *openFile, name string, _ []any) any {
			to, err := f.Readlink(name)
			if err != nil {
				return code(err)
			}
			return component.Good(strings.ToValidUTF8(to, "\uFFFD"))
		})},
		{types, method + "remove-directory-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			return f.Remove(name, true)
		})},
		{types, method + "unlink-file-at", "func(self: borrow<descriptor>, path: string) -> result<_, error-code>", change(func(_ *State, f *openFile, name string, _ []any) error {
			return f.Remove(name, false)
		})},
		{types, method + "symlink-at", "func(self: borrow<descriptor>, old-path: string, new-path: string) -> result<_, error-code>", func(s *State, args []any) any {
			s.step()
			return done(s.descriptor(args[0]).Symlink(args[1].(string), args[2].(string)))
		}},
		{types, method + "is-same-object", "func(self: borrow<descriptor>, other: borrow<descriptor>) -> bool", func(s *State, args []any) any {
			return s.descriptor(args[0]).Same(s.descriptor(args[1]).File)
		}},
		{types, method + "metadata-hash", "func(self: borrow<descriptor>) -> result<metadata-hash-value, error-code>", func(s *State, args []any) any {
			s.step()
			return hashResult(s.descriptor(args[0]).Stat())
		}},
		{types, method + "metadata-hash-at", "func(self: borrow<descriptor>, path-flags: path-flags, path: string) -> result<metadata-hash-value, error-code>", at(func(_ *State, f *openFile, name string, args []any) any {
			return hashResult(f.StatAt(name, follows(args[1])))
		})},
	}
}
