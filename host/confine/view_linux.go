package confine

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

// View is the file system as the runs of one supervisor see it. What was mounted for one run
// remains for the next that needs the same, and is unmounted before any other: its
// /proc/self/mountinfo would show somebody else's roots and HOME.
type View struct {
	// covers are folders that something else was mounted on, and what was
	// there before.
	covers map[string]cover
	// attached is what was mounted, or made in an empty cover, at each path.
	attached map[string]attachment
	// step is the one of prepare that is under way.
	step stepName
	// resolver is the mount of the run's own resolv.conf.
	resolver uint64
	// looking has prepare change nothing, and fail with errChange where it
	// would.
	looking bool
}

// errChange says that the view is not what a run needs.
var errChange = errors.New("it has to be changed")

// attachment is a mount and the step of prepare for which it was made. An id of 0 means that it
// is not known yet.
type attachment struct {
	id   uint64
	step stepName
}

type stepName struct{ do, path string }

type cover struct {
	fd int // O_PATH, of what was there
	// empty says that the cover is an empty folder of the view's own, always
	// that it is there for all runs.
	empty, always bool
}

// NewView makes the view of a process that is alone in its mount and process namespaces: with
// its own /proc, and with empty folders in place of those where programs of this user keep
// sockets, temporary files and terminals.
func NewView() (*View, error) {
	v := &View{covers: map[string]cover{}, attached: map[string]attachment{}}
	// What is mounted later on the host is seen; nothing that is mounted here is.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return nil, fmt.Errorf("keep mounts from the host: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/dev/pts", "/run/user/" + strconv.Itoa(os.Geteuid())} {
		if err := v.empty(dir); err != nil && !missing(err) {
			return nil, fmt.Errorf("make %s private: %w", dir, err)
		}
	}
	// ssh reads these only when they are root's or its user's own. In a user
	// namespace root is nobody.
	if err := v.own("/etc/ssh/ssh_config.d"); err != nil {
		return nil, err
	}
	for dir, c := range v.covers {
		c.always = true
		v.covers[dir] = c
	}
	return v, v.resolve()
}

// resolvConf has programs ask for names over TCP, whatever they would ask
// otherwise: connections are answered by package egress, and there are no
// datagrams. The address is nobody's.
const (
	resolvPath = "/etc/resolv.conf"
	resolvConf = "nameserver 198.18.0.0\noptions use-vc\n"
)

// resolve puts resolvConf where programs look for it. On the host that file may be replaced at
// any time, which removes the mount.
func (v *View) resolve() error {
	if at, err := seenAt(unix.AT_FDCWD, resolvPath, 0); err != nil || at.kind != unix.S_IFREG || at.mount == v.resolver {
		return nil // without such a file it is asked for on this host, which is answered as well
	}
	if v.looking {
		return errChange
	}
	for _, dir := range []string{"/dev/shm", "/tmp", "/var/tmp"} {
		if c, ok := v.covers[dir]; !ok || !c.empty {
			continue
		}
		file := filepath.Join(dir, "resolv.conf")
		if err := os.WriteFile(file, []byte(resolvConf), 0o444); err != nil {
			return fmt.Errorf("write %s: %w", resolvPath, err)
		}
		defer os.Remove(file)
		tree, err := unix.OpenTree(unix.AT_FDCWD, file, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("bind %s: %w", resolvPath, err)
		}
		defer unix.Close(tree)
		to, err := openPath(resolvPath, 0)
		if err != nil {
			return fmt.Errorf("bind %s: %w", resolvPath, err)
		}
		defer unix.Close(to)
		if err := unix.MoveMount(tree, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			return fmt.Errorf("bind %s: %w", resolvPath, err)
		}
		at, err := seenAt(unix.AT_FDCWD, resolvPath, 0)
		v.resolver = at.mount
		return err
	}
	return nil
}

// empty mounts an empty folder on dir.
func (v *View) empty(dir string) error {
	if c, done := v.covers[dir]; done && c.empty {
		if id, err := mountAt(dir); err == nil && id == v.attached[dir].id {
			return nil
		}
	}
	if v.looking {
		return errChange
	}
	if err := v.drop(dir); err != nil {
		return err
	}
	fd, err := beneath.OpenResolved(dir)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=4m,nr_inodes=64k"); err != nil {
		unix.Close(fd)
		return err
	}
	v.covers[dir] = cover{fd: fd, empty: true}
	return v.attach(dir)
}

// note records that something is about to be created at path, to be removed with the step.
func (v *View) note(path string) {
	if _, there := v.attached[path]; !there {
		v.attached[path] = attachment{step: v.step}
	}
}

// attach records what is mounted at path now.
func (v *View) attach(path string) error {
	id, err := mountAt(path)
	v.attached[path] = attachment{id, v.step}
	return err
}

// drop unmounts what was mounted on path and on what lies in it.
func (v *View) drop(path string) error {
	for _, at := range slices.Sorted(maps.Keys(v.attached)) {
		if !beneath.Has(path, at) {
			continue
		}
		if now, err := mountAt(at); err == nil && now == v.attached[at].id {
			if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return err
			}
		}
		delete(v.attached, at)
		if c, covered := v.covers[at]; covered {
			unix.Close(c.fd)
			delete(v.covers, at)
		}
		v.sweep(at)
	}
	return nil
}

// sweep removes what was created at path, and on the way to it, in an empty cover.
func (v *View) sweep(path string) {
	dir, _, ok := v.under(path)
	for ok && v.covers[dir].empty && path != dir {
		// What else lies there is a mount, or on the way to one.
		if id, err := mountAt(path); err != nil || id != v.attached[dir].id || os.Remove(path) != nil {
			return
		}
		path = filepath.Dir(path)
	}
}

// mountAt returns the mount that contains path.
func mountAt(path string) (uint64, error) {
	at, err := seenAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	return at.mount, err
}

// seen identifies what is at a path in a view.
type seen struct {
	id    fileID
	mount uint64
	kind  uint16 // S_IFDIR and the like
}

func seenAt(dir int, path string, flags int) (seen, error) {
	var st unix.Statx_t
	_, err := beneath.RetryEINTR(func() (int, error) {
		return 0, unix.Statx(dir, path, flags, unix.STATX_MNT_ID|unix.STATX_INO|unix.STATX_TYPE, &st)
	})
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = errors.New("this kernel does not tell mounts apart: use Linux 5.8 or later")
	}
	return seen{fileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, st.Mnt_id, st.Mode & unix.S_IFMT}, err
}

// own replaces root's files in dir by copies that belong to this user.
func (v *View) own(dir string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return nil
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			files[e.Name()] = b
		}
	}
	if err := v.empty(dir); err != nil {
		return fmt.Errorf("copy %s: %w", dir, err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o444); err != nil {
			return fmt.Errorf("copy %s: %w", dir, err)
		}
	}
	return nil
}

// Prepare changes the view to what the run of b needs; mostly it already is. A change needs a
// thread that may mount, which the calling one may not.
func (v *View) Prepare(b *Bounds) error {
	v.looking = true
	err := v.prepare(b)
	v.looking = false
	if err == nil {
		return nil
	}
	done := make(chan error)
	go func() {
		umask := unix.Umask(0o022)
		err := v.prepare(b)
		unix.Umask(umask)
		done <- err
	}()
	return <-done
}

// prepare makes visible what the run of b may use, so that nothing beneath what it may write
// can be executed except what was granted, and hides everything else of the daemon's. It takes
// back what another run needed.
func (v *View) prepare(b *Bounds) error {
	type step struct {
		stepName
		run func(string) error
	}
	var steps []step
	names := map[stepName]bool{}
	add := func(do string, run func(string) error, paths ...string) {
		for _, path := range paths {
			steps = append(steps, step{stepName{do, path}, run})
			names[stepName{do, path}] = true
		}
	}
	data := func(path string) error { // nothing in it can be executed
		return v.bind(path, unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	}
	show := func(path string) error { return v.reveal(path, 0) }
	write := Split(b.Write)
	add("hide", v.hide, Split(b.Hide)...)
	add("bind", data, write...)
	add("show", show, b.Path)
	add("show", show, Split(b.Exec)...)
	add("show", show, Split(b.Read)...)
	add("show", show, Split(b.Show)...)
	names[stepName{"bind", b.Dir}] = true
	if err := v.takeBack(names); err != nil {
		return err
	}
	if err := v.resolve(); err != nil {
		return err
	}
	if !slices.ContainsFunc(write, func(dir string) bool { return beneath.Has(dir, b.Dir) }) {
		if _, _, ok := v.under(b.Dir); ok {
			add("bind", data, b.Dir) // Landlock keeps it from being written
		}
	}
	// A folder before what lies in it.
	slices.SortStableFunc(steps, func(a, b step) int { return len(a.path) - len(b.path) })
	add("hide", v.block, Split(b.Sockets)...)
	for _, s := range steps {
		v.step = s.stepName
		if err := s.run(s.path); err != nil && !missing(err) {
			return fmt.Errorf("%s %s: %w", s.do, s.path, err)
		}
	}
	return nil
}

// takeBack undoes all steps but these.
func (v *View) takeBack(steps map[stepName]bool) error {
	for path, a := range v.attached {
		if steps[a.step] || v.covers[path].always {
			continue
		}
		if v.looking {
			return errChange
		}
		if err := v.drop(path); err != nil {
			return fmt.Errorf("take back %s: %w", path, err)
		}
	}
	return nil
}

// hide empties a folder. Files are hidden by Landlock.
func (v *View) hide(path string) error {
	at, err := seenAt(unix.AT_FDCWD, path, 0)
	if err != nil || at.kind != unix.S_IFDIR {
		return nil
	}
	for dir, c := range v.covers {
		if c.empty && v.attached[dir].id == at.mount {
			return nil // there is only what was made to bind something in it
		}
	}
	return v.empty(leadsTo(path))
}

// under returns the innermost cover above path, and the way from there.
func (v *View) under(path string) (dir, rest string, ok bool) {
	for c := range v.covers {
		if len(c) >= len(dir) && path != c && beneath.Has(c, path) {
			dir, ok = c, true
		}
	}
	return dir, strings.TrimPrefix(strings.TrimPrefix(path, dir), "/"), ok
}

// source opens, as a path, what is at path behind all covers.
func (v *View) source(path string, flags int) (int, error) {
	if c, ok := v.covers[path]; ok {
		return unix.Openat(c.fd, ".", unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	}
	return v.behind(path, flags)
}

// behind opens, as a path, what is at path behind the covers that it lies
// beneath.
func (v *View) behind(path string, flags int) (int, error) {
	if dir, rest, ok := v.under(path); ok {
		flags |= unix.O_PATH | unix.O_CLOEXEC
		fd, err := unix.Openat2(v.covers[dir].fd, rest, &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_MAGICLINKS})
		if err == unix.ENOSYS { // on the thread that a filter is on
			fd, err = beneath.Walk(v.covers[dir].fd, rest, flags)
		}
		return fd, err
	}
	return openPath(path, flags)
}

// bind mounts what is at path, behind all covers, at path with attributes. It
// does nothing where that was done and nothing was replaced since.
func (v *View) bind(path string, attributes uint64) error {
	a, bound := v.attached[path]
	now, err := seenAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
	bound = bound && err == nil && now.mount == a.id
	if bound {
		dir, rest, under := v.under(path)
		if !under {
			return nil // with the folder that it was mounted on it would be gone
		}
		if was, err := seenAt(v.covers[dir].fd, rest, unix.AT_SYMLINK_NOFOLLOW); err == nil && was.id == now.id {
			return nil
		}
	}
	src, err := v.behind(path, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			unix.Close(src)
		}
	}()
	var want unix.Stat_t
	if err := unix.Fstat(src, &want); err != nil {
		return err
	}
	kind := want.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		return unix.ELOOP
	}
	if v.looking {
		return errChange
	}
	old := v.covers[path]
	if !old.always {
		// Nothing can be mounted on what was removed, and nothing is to be left behind it.
		if err := v.drop(path); err != nil {
			return err
		}
	}
	if err := v.place(path, kind == unix.S_IFDIR); err != nil {
		return err
	}
	tree, err := unix.OpenTree(src, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if attributes != 0 {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes}); err != nil {
			return err
		}
	}
	to, err := openPath(path, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := unix.MoveMount(tree, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	if err := v.attach(path); err != nil {
		return err
	}
	if attributes != 0 {
		if old.always {
			unix.Close(old.fd)
		}
		v.covers[path] = cover{fd: src, always: old.always}
		keep = true
	}
	return nil
}

// place creates a mount point at path, if a cover is empty there.
func (v *View) place(path string, folder bool) error {
	dir, rest, ok := v.under(path)
	if !ok || !v.covers[dir].empty {
		return nil
	}
	v.note(path)
	if !folder {
		rest = filepath.Dir(rest)
	}
	if err := os.MkdirAll(filepath.Join(dir, rest), 0o755); err != nil || folder {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

// reveal makes what is at path usable as it is on the host, where a cover keeps
// it from being seen or executed. links is how many led there.
func (v *View) reveal(path string, links int) error {
	dir, _, ok := v.under(path)
	if !ok {
		if _, covered := v.covers[path]; !covered || v.covers[path].empty {
			return nil
		}
	}
	src, err := v.source(path, unix.O_NOFOLLOW)
	if err != nil || links > maxLinks {
		return nil // whoever uses it is told
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return v.bind(path, 0)
	}
	to := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(src, "", to)
	if err != nil {
		return err
	}
	target := string(to[:n])
	if _, err := os.Lstat(path); err != nil && v.covers[dir].empty {
		if v.looking {
			return errChange
		}
		v.note(path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, path); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return v.reveal(target, links+1)
}

// block makes it impossible to connect to socket.
func (v *View) block(socket string) error {
	var now unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, socket, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID|unix.STATX_TYPE, &now); err != nil {
		return nil // it is not to be seen
	}
	if now.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil
	}
	if v.looking {
		return errChange
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/dev/null", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", unix.AT_FDCWD, socket, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Open opens the folder path through the mounts of the view. It must be the same folder as fd,
// which may come from other mounts.
func (*View) Open(path string, fd int) (int, error) {
	dir, err := beneath.OpenNoLinks(path)
	if err != nil {
		return -1, err
	}
	var want, got unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &want), unix.Fstat(dir, &got)); err != nil {
		unix.Close(dir)
		return -1, err
	}
	if idOf(&want) != idOf(&got) {
		unix.Close(dir)
		return -1, errors.New("it was replaced meanwhile")
	}
	return dir, nil
}
