package process

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// maxVisible bounds the rules that make up what may be read: each costs a run
// most of a microsecond.
const maxVisible = 1024

// fresh is how old the last change of a folder must be for its time to tell of
// the next one: the kernel's clock for files stands still for as long.
const fresh = 20 * time.Millisecond

// visible is what may be read where something is hidden. Landlock knows no
// exceptions: a rule for / would be one for what is hidden too. So there is a
// rule for each file and folder that lies beside the way to it, and none for
// the folders of the way, which can be passed through and not be listed. The
// rules are kept from one run to the next, as long as these folders are as they
// were.
type visible struct {
	hide string // as in spec
	// hidden are the places of what is hidden, ways the folders that lead there.
	hidden []string
	ways   []way
	rules  []readRule
	// told is what the log was told last.
	told string
}

// way is a folder as it was.
type way struct {
	path      string
	dev, ino  uint64 // 0, 0: it was not there, or not long enough
	sec, nsec int64
}

type readRule struct {
	fd     int
	access uint64
}

// except are the rules that leave all to be read but hide, a list as in spec.
func (v *visible) except(hide []byte) []readRule {
	if v.hide != string(hide) || v.stale() {
		for _, r := range v.rules {
			unix.Close(r.fd)
		}
		*v = visible{hide: string(hide), told: v.told}
		v.look()
	}
	return v.rules
}

func (v *visible) stale() bool {
	return !slices.Equal(v.hidden, places(v.hide)) ||
		slices.ContainsFunc(v.ways, func(w way) bool { return w != stamp(w.path) })
}

func stamp(path string) way {
	w := way{path: path}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		w.dev, w.ino = uint64(st.Dev), st.Ino
		w.sec, w.nsec = st.Mtim.Unix()
	}
	return w
}

// places are where hide leads, as far as there is something.
func places(hide string) []string {
	list := split([]byte(hide))
	for i, path := range list {
		for dir, rest := path, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
			if real, err := filepath.EvalSymlinks(dir); err == nil {
				list[i] = filepath.Join(real, rest)
				break
			}
			if dir == "/" {
				break
			}
		}
	}
	return list
}

func (v *visible) look() {
	v.hidden = places(v.hide)
	leads := map[string]bool{}
	for _, path := range v.hidden {
		for dir := filepath.Dir(path); !leads[dir]; dir = filepath.Dir(dir) {
			leads[dir] = true
		}
	}
	isHidden := func(path string) bool {
		return slices.ContainsFunc(v.hidden, func(h string) bool { return Beneath(h, path) })
	}
	for _, dir := range slices.Sorted(maps.Keys(leads)) {
		if isHidden(dir) {
			continue
		}
		w := stamp(dir)
		if time.Since(time.Unix(w.sec, w.nsec)) < fresh {
			w.dev, w.ino = 0, 0
		}
		v.ways = append(v.ways, w)
		names, err := entries(dir, maxVisible-len(v.rules))
		if err != nil {
			if text := fmt.Sprintf("toold: confined tools can read nothing that lies directly in %s, which leads to what is hidden from them: %v", dir, err); text != v.told && !missing(err) {
				v.told = text
				fmt.Fprintln(os.Stderr, text)
			}
			continue
		}
		for _, name := range names {
			if path := filepath.Join(dir, name); !leads[path] && !isHidden(path) {
				v.add(path)
			}
		}
	}
}

// add makes a rule for path. What cannot be opened cannot be read: it has gone,
// or this user may not pass. What a link leads to has a rule where it is.
func (v *visible) add(path string) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) })
	if err != nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return
	}
	access := uint64(accessReadFile)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		access = accessRead
	}
	v.rules = append(v.rules, readRule{fd, access})
}

// entries are the names in a folder, max at most.
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
