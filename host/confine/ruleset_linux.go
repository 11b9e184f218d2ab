package confine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

// StepExec is the step, of those that come with an error, that speaks of the
// run's own program.
const StepExec = "exec"

const (
	// maxRulesets bounds what a supervisor keeps: those of the last callers
	// and tools that it ran for.
	maxRulesets = 8
	// maxVisible bounds the rules that make up what may be read.
	maxVisible = 1024
	// fresh is how old the last change of a file must be for its time to tell
	// of the next one: the kernel's clock for files stands still for as long.
	fresh = 20 * time.Millisecond
)

// systemProgram is a program of every system, whose loader is the system's.
const systemProgram = "/bin/sh"

// confinement is what a ruleset is made for; the lists are those of Bounds.
type confinement struct {
	path, write, exec, read, hide, interpreters string
	judged                                      bool // the run is under a filter
	abi                                         int
}

// ruleset is a confinement in Landlock's form. Making one takes longer than starting a thread
// with it, so it is kept as long as the files that it refers to are the same: rules refer to
// files and folders, not to their names.
type ruleset struct {
	of     confinement
	fd     int // -1 without Landlock
	seen   []stamp
	grants grants
}

// stamp identifies what was at a path.
type stamp struct {
	path string
	// timed says that a change of what is in it counts.
	timed     bool
	dev, ino  uint64 // 0, 0: it was not there, or changes just now
	sec, nsec int64
}

func look(path string, timed bool) stamp {
	s := stamp{path: path, timed: timed}
	var st unix.Stat_t
	if _, err := beneath.RetryEINTR(func() (int, error) { return 0, unix.Stat(path, &st) }); err == nil {
		s.dev, s.ino = uint64(st.Dev), st.Ino
		if timed {
			s.sec, s.nsec = st.Mtim.Unix()
		}
	}
	return s
}

// Rulesets are the Landlock rulesets of one supervisor.
type Rulesets struct {
	// devices are those of openDevices.
	devices []int
	kept    []*ruleset // the last used is the last
	// told is what the log was told last.
	told string
}

// get returns a ruleset, which remains the receiver's, for the next
// restrictThread. An error comes with the step that failed.
func (s *Rulesets) get(of confinement) (_ *ruleset, step string, err error) {
	if i := slices.IndexFunc(s.kept, func(r *ruleset) bool { return r.of == of }); i >= 0 {
		r := s.kept[i]
		s.kept = slices.Delete(s.kept, i, i+1)
		if !slices.ContainsFunc(r.seen, func(was stamp) bool { return was != look(was.path, was.timed) }) {
			s.kept = append(s.kept, r)
			return r, "", nil
		}
		r.close()
	}
	b, step, err := newBuilder(of.abi, of.hide != "", of.judged)
	if err == nil {
		step, err = b.build(s, of)
	}
	if err != nil {
		return nil, step, err
	}
	if len(s.kept) == maxRulesets {
		s.kept[0].close()
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	r := &ruleset{of: of, fd: b.fd, seen: b.seen, grants: b.grants}
	s.kept = append(s.kept, r)
	return r, "", nil
}

// NewRulesets returns an empty set. It opens the devices that every run may write to.
func NewRulesets() *Rulesets { return &Rulesets{devices: openDevices()} }

func (r *ruleset) close() {
	if r.fd >= 0 {
		unix.Close(r.fd)
	}
}

// builder builds a ruleset.
type builder struct {
	fd      int
	handled uint64
	seen    []stamp
	visible int // rules for reading
	grants  grants
}

// newBuilder returns a builder of a ruleset that allows nothing that version abi can refuse.
// judged says that a filter makes the supervisor connect sockets.
func newBuilder(abi int, hiding, judged bool) (*builder, string, error) {
	b := &builder{handled: accessHandled, fd: -1, grants: grants{programs: map[fileID]bool{}, loaders: map[fileID]bool{}}}
	if abi < abiRefer {
		return b, "", nil
	}
	if !hiding {
		b.handled &^= accessRead
	}
	if abi < abiTruncate {
		b.handled &^= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi < abiIoctl {
		b.handled &^= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: b.handled}
	if abi >= abiNetwork && judged {
		// The supervisor connects for it. Binding is for servers.
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_CONNECT_TCP | unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if abi >= abiScope {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	// Fields that an older kernel does not know are zero, so it takes the
	// longer structure.
	r, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, "make a Landlock ruleset", errno
	}
	b.fd = int(r)
	return b, "", nil
}

func (b *builder) build(s *Rulesets, of confinement) (step string, err error) {
	defer func() {
		if err != nil && b.fd >= 0 {
			unix.Close(b.fd)
		}
	}()
	for _, device := range s.devices {
		if err := b.add(device, accessDevice); err != nil {
			return "allow devices", err
		}
	}
	if of.hide != "" {
		if text := b.allReadableBut(Split([]byte(of.hide))); text != "" && text != s.told {
			s.told = text
			fmt.Fprintln(os.Stderr, "toold: "+text)
		}
	}
	for _, folder := range Split([]byte(of.write)) {
		b.note(folder, false)
		b.grants.write = append(b.grants.write, folder)
		fd, err := beneath.OpenNoLinks(folder)
		if missing(err) {
			continue
		}
		if err != nil {
			return "allow writing beneath " + folder, err
		}
		err = b.add(fd, accessWrite)
		unix.Close(fd)
		if err != nil {
			return "allow writing beneath " + folder, err
		}
	}
	for _, file := range Split([]byte(of.read)) {
		if _, err := b.allow(file, accessReadFile); err != nil {
			return "allow reading " + file, err
		}
	}
	for i, file := range append([]string{of.path}, Split([]byte(of.exec))...) {
		if i > 0 && file == of.path {
			continue
		}
		st, err := b.allow(file, accessExec)
		if err != nil {
			if i == 0 {
				return StepExec, err
			}
			return "allow executing " + file, err
		}
		if st == nil {
			continue
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			b.grants.folders = append(b.grants.folders, leadsTo(file))
			file = systemProgram // what lies in there is started as this is
		} else if b.grants.programs[idOf(st)] = true; i == 0 {
			b.grants.own = idOf(st)
		}
		if step, err := b.allowLoader(file); err != nil && (i == 0 || step != "") && !missing(err) {
			return cmp.Or(step, "find the interpreter of "+file), err // of others exec says it better
		}
	}
	return b.allowInterpreters(of)
}

// allowLoader allows executing the ELF interpreter of file. An error without a step comes from
// reading file.
func (b *builder) allowLoader(file string) (step string, err error) {
	name, err := interpreter(file)
	if err != nil || name == "" {
		return "", err
	}
	st, err := b.allow(name, accessExec)
	if err != nil {
		return "allow executing " + name, err
	}
	if st != nil {
		b.grants.loaders[idOf(st)] = true
	}
	return "", nil
}

// allowInterpreters allows executing the interpreters of the run's own program, a script. If
// the run could replace one of them, or the script, whose first line names them, it allows
// none.
func (b *builder) allowInterpreters(of confinement) (step string, err error) {
	if of.interpreters == "" {
		return "", nil
	}
	var list []Interpreter
	if err := json.Unmarshal([]byte(of.interpreters), &list); err != nil {
		return "read the interpreters of " + of.path, err
	}
	paths := []string{of.path}
	for _, in := range list {
		paths = append(paths, in.Path)
	}
	for _, path := range paths {
		b.note(path, true)
		p, err := b.grants.lookup(unix.Gettid(), unix.AT_FDCWD, path)
		if err != nil {
			return "", nil // exec says it better
		}
		p.close()
		if p.exposed || b.grants.canWrite(p.path) || isLoader(p.path) || p.stat.Mode&unix.S_IFMT != unix.S_IFREG {
			return "", nil
		}
	}
	for _, in := range list {
		st, err := b.allow(in.Path, accessExec)
		if err != nil {
			return "allow executing " + in.Path, err
		}
		if st != nil && in.Args != nil {
			b.grants.interpreters = append(b.grants.interpreters, started{idOf(st), in.Args})
		}
		if step, err := b.allowLoader(in.Path); step != "" {
			return step, err
		}
	}
	return "", nil
}

// note makes the ruleset invalid once path is another file, or, if timed, once its content is
// another.
func (b *builder) note(path string, timed bool) {
	s := look(path, timed)
	if timed && time.Since(time.Unix(s.sec, s.nsec)) < fresh {
		s.dev, s.ino = 0, 0
	}
	b.seen = append(b.seen, s)
}

// allow grants access to path and what lies beneath it, and returns what it is. Links are
// followed; a missing path grants nothing, and nil is returned.
func (b *builder) allow(path string, access uint64) (*unix.Stat_t, error) {
	b.note(path, true)
	fd, err := openPath(path, 0)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return &st, b.add(fd, access)
}

func (b *builder) add(fd int, access uint64) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access & b.handled, Parent_fd: int32(fd)}
	if attr.Allowed_access == 0 || b.fd < 0 {
		return nil // nothing to allow is an error to Landlock
	}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(b.fd), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// allReadableBut allows reading everything except what hide names and what lies beneath it.
// Landlock has no exceptions: a rule for / would include what is hidden. So there is a rule for
// each file and folder beside the way to it, and none for the folders on the way, which can be
// passed through but not listed. It returns what the operator should know.
func (b *builder) allReadableBut(hide []string) (text string) {
	leads := map[string]bool{"/": true, devices: true}
	hidden := make([]string, len(hide))
	for i, path := range hide {
		b.note(path, false) // where it leads, by whatever links
		hidden[i] = leadsTo(path)
		for dir := filepath.Dir(hidden[i]); !leads[dir]; dir = filepath.Dir(dir) {
			leads[dir] = true
		}
	}
	b.grants.hidden, b.grants.leads = hidden, leads
	isHidden := func(path string) bool {
		return isDevice(path) || slices.ContainsFunc(hidden, func(h string) bool { return beneath.Has(h, path) })
	}
	for _, dir := range slices.Sorted(maps.Keys(leads)) {
		if isHidden(dir) {
			continue
		}
		b.note(dir, true)
		names, err := entries(dir, maxVisible-b.visible)
		if err != nil {
			if !missing(err) {
				text = fmt.Sprintf("confined tools can read nothing that lies directly in %s, which leads to what is hidden from them: %v", dir, err)
			}
			continue
		}
		for _, name := range names {
			if path := filepath.Join(dir, name); !leads[path] && !isHidden(path) {
				b.readable(path)
			}
		}
	}
	return text
}

// readable allows reading path. What cannot be opened cannot be read: it has gone, or this user
// may not pass. The target of a link has a rule of its own.
func (b *builder) readable(path string) {
	fd, err := openPath(path, unix.O_NOFOLLOW)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return
	}
	access := uint64(accessReadFile)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		access = accessRead
	}
	if b.add(fd, access) == nil {
		b.visible++
	}
}

// leadsTo returns where path leads, as far as it exists.
func leadsTo(path string) string {
	for dir, rest := path, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == "/" {
			return path
		}
	}
}

// entries returns the names in a folder, at most max.
func entries(dir string, max int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.Readdirnames(max + 1)
	if len(list) > max {
		return nil, fmt.Errorf("there are more than %d files and folders beside the way; give what is hidden a folder of its own", maxVisible)
	}
	if err == io.EOF {
		err = nil
	}
	return list, err
}
