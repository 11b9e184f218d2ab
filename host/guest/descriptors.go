package guest

import (
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/host/guest/folder"
)

// Descriptors of preview 1 and the file operations on them. Package folder decides
// which operations a folder permits.

// descriptor is an entry in the guest's descriptor table.
type descriptor struct {
	kind  descriptorKind
	file  *folder.File // for opened and preopened
	guest string       // for preopened: its name
	at    int64        // for opened: read position
	flags uint16       // for opened: the fdFlags that can be set
	list  *listing     // for folders, once read
}

type descriptorKind uint8

const (
	free descriptorKind = iota
	standardInput
	standardOutput
	standardError
	preopened
	opened
)

// Flags of descriptors.
const (
	fdAppend   = 1
	fdDsync    = 2
	fdNonblock = 4
	fdRsync    = 8
	fdSync     = 16
)

// Rights reported for a descriptor. They are informational and not enforced: the Mounts
// determine what a guest may do.
const (
	rightRead     = 1 << 1
	rightSeek     = 1 << 2
	rightWrite    = 1 << 6
	rightReaddir  = 1 << 14
	rightSizeAt   = 1 << 19
	rightSize     = 1 << 22
	allRights     = 1<<30 - 1
	rightsOfFiles = 1<<0 | rightRead | rightSeek | 1<<3 | 1<<4 | 1<<5 | rightWrite | 1<<7 | 1<<8 | 1<<21 | rightSize | 1<<23 | 1<<27
	rightsOfRoots = 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | rightReaddir | 1<<15 | 1<<16 | 1<<17 | 1<<18 | 1<<20 | 1<<21 | 1<<23 | 1<<24 | 1<<25 | 1<<26
)

// beginWASI gives a call the descriptors that every call starts with, unless the
// instance has just been initialized: then it keeps those that initialization left.
func (in *instance) beginWASI() error {
	w := &in.wasi
	if w.begun {
		return nil
	}
	w.fds = append(w.fds[:0], descriptor{kind: standardInput}, descriptor{kind: standardOutput}, descriptor{kind: standardError})
	for _, d := range in.mounts {
		root, err := os.OpenRoot(d.Host)
		if err != nil {
			in.endWASI()
			return in.m.errorf(BadMount, "", "open folder for the guest: %w", err)
		}
		f := folder.Folder{Guest: d.Guest, Root: root, ReadOnly: d.ReadOnly}
		w.folders = append(w.folders, f)
		w.fds = append(w.fds, descriptor{kind: preopened, file: f.File(), guest: d.Guest})
	}
	if in.comp != nil {
		in.comp.state.Host.Dirs = w.folders
	}
	w.begun, w.changed, w.touched = true, false, false
	return nil
}

// endWASI closes everything that the call has open.
func (in *instance) endWASI() {
	w := &in.wasi
	for i := range w.fds {
		w.fds[i].close()
	}
	for _, f := range w.folders {
		f.Root.Close()
	}
	clear(w.folders)
	w.fds, w.folders, w.files, w.begun = w.fds[:0], w.folders[:0], 0, false
}

func (d *descriptor) close() {
	if d.kind == opened {
		d.file.Close()
	}
	if d.list != nil {
		d.list.close()
	}
	*d = descriptor{}
}

// descriptor returns the descriptor for a number, or nil.
func (c *call) descriptor(fd uint64) *descriptor {
	w := &c.inst.wasi
	if n := uint64(uint32(fd)); n < uint64(len(w.fds)) && w.fds[n].kind != free {
		return &w.fds[n]
	}
	return nil
}

// step charges for an operation on files, in addition to n bytes. It ends the call if
// its context has ended.
func (c *call) step(n int) {
	c.charge(uint64(n) + 16_000)
	c.checkCanceled()
	c.inst.wasi.touched = true
}

// errno returns the number of an error.
func errno(err error) uint64 {
	if err == nil || err == io.EOF {
		return eOK
	}
	_, n := folder.Error(err)
	return uint64(n)
}

// text reads a string from the guest's memory.
func (c *call) text(ptr, n uint64) (string, uint64) {
	p := c.view(ptr, n)
	switch {
	case p == nil:
		return "", eFAULT
	case len(p) > maxPath:
		return "", eNAMETOOLONG
	case !utf8.Valid(p):
		return "", eILSEQ
	}
	return string(p), eOK
}

// maxPath is the maximum length of a path in bytes.
const maxPath = 64 << 10

// folder returns an open folder and the name given by ptr and n.
func (c *call) folder(fd, ptr, n uint64) (f *folder.File, name string, no uint64) {
	d := c.descriptor(fd)
	switch {
	case d == nil || d.file == nil:
		return nil, "", eBADF
	case !d.file.Dir:
		return nil, "", eNOTDIR
	}
	name, no = c.text(ptr, n)
	c.step(len(name))
	return d.file, name, no
}

// at adapts a function on a path: s[i] is the descriptor; s[path] and the next
// parameter are the path's address and length.
func at(i, path int, do func(c *call, s []uint64, f *folder.File, name string) error) func(c *call, s []uint64) uint64 {
	return func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[i], s[path], s[path+1])
		if no != eOK {
			return no
		}
		return errno(do(c, s, f, name))
	}
}

// between adapts a function on two paths. The parameters of the second start at i.
func between(path, i int, do func(s []uint64, f *folder.File, name string, dir *folder.File, to string) error) func(c *call, s []uint64) uint64 {
	return func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[0], s[path], s[path+1])
		if no != eOK {
			return no
		}
		dir, to, no := c.folder(s[i], s[i+1], s[i+2])
		if no != eOK {
			return no
		}
		return errno(do(s, f, name, dir, to))
	}
}

// follows reads the lookup flags of a path.
func follows(flags uint64) bool { return flags&1 != 0 }

// file adapts a function on an open file.
func file(do func(c *call, s []uint64, d *descriptor) uint64) func(c *call, s []uint64) uint64 {
	return func(c *call, s []uint64) uint64 {
		d := c.descriptor(s[0])
		if d == nil || d.kind != opened || d.file.Dir {
			return eBADF
		}
		c.step(0)
		return do(c, s, d)
	}
}

// fileFuncs are the functions of preview 1 that only concern files, by name.
var fileFuncs = map[string]func(c *call, s []uint64) uint64{
	"fd_advise": file(func(_ *call, s []uint64, d *descriptor) uint64 {
		if uint32(s[3]) > 5 {
			return eINVAL
		}
		return eOK
	}),
	"fd_allocate": file(func(*call, []uint64, *descriptor) uint64 { return eNOTSUP }),
	"fd_datasync": file(func(c *call, _ []uint64, d *descriptor) uint64 { return c.sync(d) }),
	"fd_sync":     file(func(c *call, _ []uint64, d *descriptor) uint64 { return c.sync(d) }),
	"fd_filestat_set_size": file(func(_ *call, s []uint64, d *descriptor) uint64 {
		return errno(d.file.Truncate(int64(s[1])))
	}),
	"fd_filestat_set_times": func(c *call, s []uint64) uint64 {
		d := c.descriptor(s[0])
		if d == nil || d.file == nil {
			return eBADF
		}
		c.step(0)
		used, changed, ok := times(s[1:])
		if !ok {
			return eINVAL
		}
		return errno(d.file.SetTimes(used, changed))
	},
	"fd_seek": func(c *call, s []uint64) uint64 { return c.seek(s[0], int64(s[1]), uint32(s[2]), s[3]) },
	"fd_tell": func(c *call, s []uint64) uint64 { return c.seek(s[0], 0, io.SeekCurrent, s[1]) },
	"fd_prestat_get": func(c *call, s []uint64) uint64 {
		d := c.descriptor(s[0])
		if d == nil || d.kind != preopened {
			return eBADF
		}
		if !c.put64(s[1], uint64(len(d.guest))<<32) {
			return eFAULT
		}
		return eOK
	},
	"fd_prestat_dir_name": func(c *call, s []uint64) uint64 {
		d := c.descriptor(s[0])
		switch {
		case d == nil:
			return eBADF
		case d.kind != preopened:
			return eNOTDIR
		case uint64(uint32(s[2])) < uint64(len(d.guest)):
			return eNAMETOOLONG
		}
		p := c.view(s[1], uint64(len(d.guest)))
		if p == nil {
			return eFAULT
		}
		copy(p, d.guest)
		return eOK
	},
	"fd_readdir": readdir,

	"path_create_directory": at(0, 1, func(_ *call, _ []uint64, f *folder.File, name string) error { return f.Mkdir(name) }),
	"path_filestat_get": func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[0], s[2], s[3])
		if no != eOK {
			return no
		}
		st, err := f.StatAt(name, follows(s[1]))
		if err != nil {
			return errno(err)
		}
		return c.putStat(s[4], st)
	},
	"path_filestat_set_times": func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[0], s[2], s[3])
		if no != eOK {
			return no
		}
		used, changed, ok := times(s[4:])
		if !ok {
			return eINVAL
		}
		return errno(f.SetTimesAt(name, follows(s[1]), used, changed))
	},
	"path_link": between(2, 4, func(s []uint64, f *folder.File, name string, dir *folder.File, to string) error {
		return f.Link(name, follows(s[1]), dir, to)
	}),
	"path_open": pathOpen,
	"path_readlink": func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[0], s[1], s[2])
		if no != eOK {
			return no
		}
		to, err := f.Readlink(name)
		if err != nil {
			return errno(err)
		}
		p := c.view(s[3], s[4])
		if p == nil || !c.put32(s[5], uint32(copy(p, to))) {
			return eFAULT
		}
		return eOK
	},
	"path_remove_directory": at(0, 1, func(_ *call, _ []uint64, f *folder.File, name string) error { return f.Remove(name, true) }),
	"path_rename": between(1, 3, func(_ []uint64, f *folder.File, name string, dir *folder.File, to string) error {
		return f.Rename(name, dir, to)
	}),
	"path_symlink": func(c *call, s []uint64) uint64 {
		f, name, no := c.folder(s[2], s[3], s[4])
		if no != eOK {
			return no
		}
		target, no := c.text(s[0], s[1])
		if no != eOK {
			return no
		}
		return errno(f.Symlink(target, name))
	},
	"path_unlink_file": at(0, 1, func(_ *call, _ []uint64, f *folder.File, name string) error { return f.Remove(name, false) }),
}

func (c *call) sync(d *descriptor) uint64 {
	c.pause()
	return errno(d.file.Sync())
}

// times reads two times to set: each is unchanged, given or now.
func times(s []uint64) (used, changed time.Time, ok bool) {
	one := func(t, flags uint64) (at time.Time, ok bool) {
		switch flags & 3 {
		case 1:
			return time.Unix(int64(t/1e9), int64(t%1e9)), true
		case 2:
			return time.Now(), true
		}
		return at, flags&3 == 0
	}
	var ok2 bool
	used, ok = one(s[0], s[2])
	changed, ok2 = one(s[1], s[2]>>2)
	return used, changed, ok && ok2
}

func (c *call) seek(fd uint64, off int64, whence uint32, result uint64) uint64 {
	d, no := c.positioned(fd, standardInput, standardOutput, standardError)
	if no != eOK {
		return no
	}
	var base int64
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		base = d.at
	case io.SeekEnd:
		c.step(0)
		st, err := d.file.Stat()
		if err != nil {
			return errno(err)
		}
		base = st.Size()
	default:
		return eINVAL
	}
	if base += off; base < 0 { // negative or overflowed
		return eINVAL
	}
	if !c.put64(result, uint64(base)) {
		return eFAULT
	}
	d.at = base
	return eOK
}

// lowest returns the lowest unused number.
func (w *wasi) lowest() int {
	i := slices.IndexFunc(w.fds, func(d descriptor) bool { return d.kind == free })
	if i < 0 {
		i = len(w.fds)
		w.fds = append(w.fds, descriptor{})
	}
	return i
}

func pathOpen(c *call, s []uint64) uint64 {
	w := &c.inst.wasi
	f, name, no := c.folder(s[0], s[2], s[3])
	if no != eOK {
		return no
	}
	if w.files >= folder.MostFiles {
		return errno(folder.ErrTooManyFiles)
	}
	var flags uint32
	if s[5]&rightRead != 0 {
		flags |= folder.Read
	}
	if s[5]&rightWrite != 0 {
		flags |= folder.Write
	}
	if s[7]&(fdDsync|fdRsync|fdSync) != 0 {
		flags |= folder.Sync
	}
	if c.view(s[8], 4) == nil {
		return eFAULT
	}
	o, err := f.Open(name, follows(s[1]), uint32(s[4])&0xffff, flags)
	if err != nil {
		return errno(err)
	}
	n := w.lowest()
	w.fds[n] = descriptor{kind: opened, file: o, flags: uint16(s[7])}
	w.files++
	w.changed = true
	c.put32(s[8], uint32(n))
	return eOK
}

// fileType returns preview 1's number for a kind of file.
func fileType(k folder.Kind) byte {
	return map[folder.Kind]byte{folder.BlockDevice: 1, folder.CharacterDevice: 2, folder.Directories: 3, folder.Regular: 4, folder.Socket: 6, folder.Link: 7}[k]
}

// putStat writes a filestat.
func (c *call) putStat(ptr uint64, st fs.FileInfo) uint64 {
	p := c.view(ptr, 64)
	if p == nil {
		return eFAULT
	}
	of := sys.NewStat_t(st)
	binary.LittleEndian.PutUint64(p, of.Dev)
	binary.LittleEndian.PutUint64(p[8:], of.Ino)
	binary.LittleEndian.PutUint64(p[16:], uint64(fileType(folder.KindOf(st.Mode()))))
	binary.LittleEndian.PutUint64(p[24:], of.Nlink)
	binary.LittleEndian.PutUint64(p[32:], uint64(max(of.Size, 0)))
	binary.LittleEndian.PutUint64(p[40:], uint64(of.Atim))
	binary.LittleEndian.PutUint64(p[48:], uint64(of.Mtim))
	binary.LittleEndian.PutUint64(p[56:], uint64(of.Ctim))
	return eOK
}

func fdstat(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	if d == nil {
		return eBADF
	}
	p := c.view(s[1], 24)
	if p == nil {
		return eFAULT
	}
	clear(p)
	rights, inherited := uint64(rightWrite), uint64(rightWrite)
	switch {
	case d.kind == standardInput:
		rights, inherited = rightRead, rightRead
	case d.kind == preopened:
		p[0], rights, inherited = 3, rightsOfRoots, rightsOfRoots|rightsOfFiles
	case d.kind == opened && d.file.Dir:
		p[0], rights, inherited = 3, allRights&^(rightSeek|rightSize|rightSizeAt|rightWrite), allRights
	case d.kind == opened:
		p[0], rights = 4, allRights
		if d.file.Flags&folder.Read == 0 {
			rights &^= rightRead | rightReaddir
		}
		if d.file.Flags&folder.Write == 0 {
			rights &^= rightWrite
		}
		inherited = rights
	}
	binary.LittleEndian.PutUint16(p[2:], d.flags)
	binary.LittleEndian.PutUint64(p[8:], rights)
	binary.LittleEndian.PutUint64(p[16:], inherited)
	return eOK
}

func setFlags(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	switch {
	case d == nil || d.file != nil && d.file.Dir:
		return eBADF
	case s[1]&(fdDsync|fdRsync|fdSync) != 0:
		return eINVAL
	}
	if d.kind == opened {
		d.flags = d.flags&^(fdAppend|fdNonblock) | uint16(s[1])&(fdAppend|fdNonblock)
	}
	return eOK
}

func filestat(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	if d == nil {
		return eBADF
	}
	if d.file != nil {
		c.step(0)
		st, err := d.file.Stat()
		if err != nil {
			return errno(err)
		}
		return c.putStat(s[1], st)
	}
	p := c.view(s[1], 64)
	if p == nil {
		return eFAULT
	}
	clear(p)
	return eOK
}

// Buffers are read and written in pieces of this size: a guest may pass all of its
// memory at once.
const piece = 1 << 20

// buffers calls do for each of a guest's buffers in turn, until one is not used up, and
// writes the sum.
func (c *call) buffers(s []uint64, result uint64, do func(p []byte) (int, error)) uint64 {
	n := uint64(uint32(s[2]))
	iovs := c.view(s[1], n*8)
	if n*8 > 1<<31 || iovs == nil {
		return eFAULT
	}
	c.charge(n * 16)
	var total uint32
	for i := range n {
		size := binary.LittleEndian.Uint32(iovs[i*8+4:])
		p := c.view(uint64(binary.LittleEndian.Uint32(iovs[i*8:])), uint64(size))
		if p == nil {
			return eFAULT
		}
		if len(p) == 0 {
			continue
		}
		p = p[:min(len(p), piece)]
		got, err := do(p)
		total += uint32(got)
		if err != nil && err != io.EOF && total == 0 {
			return errno(err)
		}
		if err != nil || uint32(got) < size {
			break
		}
	}
	if !c.put32(result, total) {
		return eFAULT
	}
	return eOK
}

func (c *call) readAt(d *descriptor, p []byte, off int64) (int, error) {
	c.step(len(p))
	return d.file.ReadAt(p, off)
}

func (c *call) writeAt(d *descriptor, p []byte, off int64) (int, error) {
	c.step(len(p))
	return d.file.WriteAt(p, off)
}

func fdRead(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	switch {
	case d == nil || d.kind == standardOutput || d.kind == standardError:
		return eBADF
	case d.kind == standardInput:
		return c.buffers(s, s[3], func(p []byte) (int, error) {
			if c.inst.stdin == nil {
				return 0, io.EOF
			}
			c.charge(uint64(len(p)))
			return c.inst.stdin.Read(p)
		})
	case d.file.Dir:
		return eBADF
	}
	return c.buffers(s, s[3], func(p []byte) (int, error) {
		n, err := c.readAt(d, p, d.at)
		d.at += int64(n)
		return n, err
	})
}

func fdPread(c *call, s []uint64) uint64 {
	d, no := c.positioned(s[0], standardInput)
	if no != eOK {
		return no
	}
	off := int64(s[3])
	return c.buffers(s, s[4], func(p []byte) (int, error) {
		n, err := c.readAt(d, p, off)
		off += int64(n)
		return n, err
	})
}

// positioned returns a file for reading or writing at an offset. Sequential streams
// have no offsets.
func (c *call) positioned(fd uint64, inOrder ...descriptorKind) (*descriptor, uint64) {
	d := c.descriptor(fd)
	switch {
	case d != nil && slices.Contains(inOrder, d.kind):
		return nil, eSPIPE
	case d == nil || d.kind != opened || d.file.Dir:
		return nil, eBADF
	}
	return d, eOK
}

func fdPwrite(c *call, s []uint64) uint64 {
	d, no := c.positioned(s[0], standardOutput, standardError)
	if no != eOK {
		return no
	}
	off := int64(s[3])
	return c.buffers(s, s[4], func(p []byte) (int, error) {
		n, err := c.writeAt(d, p, off)
		off += int64(n)
		return n, err
	})
}

func fdWrite(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	switch {
	case d == nil || d.kind == standardInput || d.file != nil && d.file.Dir:
		return eBADF
	case d.kind == opened && d.flags&fdAppend != 0:
		return c.buffers(s, s[3], func(p []byte) (n int, err error) {
			c.step(len(p))
			n, d.at, err = d.file.Append(p)
			return n, err
		})
	case d.kind == opened:
		return c.buffers(s, s[3], func(p []byte) (int, error) {
			n, err := c.writeAt(d, p, d.at)
			d.at += int64(n)
			return n, err
		})
	case d.kind == standardError:
		return c.buffers(s, s[3], c.inst.stderr)
	}
	return c.buffers(s, s[3], c.inst.stdout)
}

// listing is the progress of reading a folder.
type listing struct {
	dir   *os.File
	from  uint64   // cookie of the first of names
	names []string // read last
}

// batch is the number of names read at a time.
const batch = 256

func (l *listing) close() {
	if l.dir != nil {
		l.dir.Close()
	}
}

// name returns the name for a cookie, or io.EOF. Cookies number the names; 0 and 1 are
// "." and "..".
func (l *listing) name(c *call, f *folder.File, cookie uint64) (string, error) {
	switch cookie {
	case 0:
		return ".", nil
	case 1:
		return "..", nil
	}
	if l.dir == nil || cookie < l.from {
		l.close()
		var err error
		if l.dir, err = f.Entries(); err != nil {
			return "", err
		}
		l.from, l.names = 2, nil
	}
	for cookie-l.from >= uint64(len(l.names)) {
		names, err := l.dir.Readdirnames(batch)
		c.charge(uint64(len(names)) * 1000)
		if err != nil {
			return "", err
		}
		l.from += uint64(len(l.names))
		l.names = names
	}
	return l.names[cookie-l.from], nil
}

func readdir(c *call, s []uint64) uint64 {
	d := c.descriptor(s[0])
	if d == nil || d.file == nil || !d.file.Dir {
		return eBADF
	}
	c.step(0)
	buf := c.view(s[1], s[2])
	if buf == nil {
		return eFAULT
	}
	cookie := s[3]
	if d.list == nil || cookie == 0 {
		if d.list != nil {
			d.list.close()
		}
		d.list = &listing{}
	}
	used := 0
	for ; used < len(buf); cookie++ {
		name, err := d.list.name(c, d.file, cookie)
		if err == io.EOF {
			break
		}
		if err != nil {
			return errno(err)
		}
		c.charge(1000)
		var st fs.FileInfo
		if cookie < 2 {
			st, err = d.file.Stat() // the guest may not look at the parent
		} else {
			st, err = d.file.StatAt(name, false)
		}
		var head [24]byte
		binary.LittleEndian.PutUint64(head[:], cookie+1)
		if err == nil { // it may have been removed in the meantime
			_, ino, _ := folder.Identity(st)
			binary.LittleEndian.PutUint64(head[8:], ino)
			head[20] = fileType(folder.KindOf(st.Mode()))
		}
		binary.LittleEndian.PutUint32(head[16:], uint32(len(name)))
		used += copy(buf[used:], head[:])
		used += copy(buf[used:], name)
	}
	if !c.put32(s[4], uint32(used)) {
		return eFAULT
	}
	return eOK
}
