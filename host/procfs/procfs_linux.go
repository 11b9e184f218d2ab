package procfs

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descendants are the processes beneath this one, parents first.
func Descendants() []int {
	var list []int
	seen := map[int]bool{}
	add := func(pids []int) {
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				list = append(list, pid)
			}
		}
	}
	add(children("self"))
	for i := 0; i < len(list); i++ {
		add(children(strconv.Itoa(list[i])))
	}
	return list
}

// children are the processes that the threads of process started or adopted.
func children(process string) []int {
	var pids []int
	tasks := "/proc/" + process + "/task"
	dir, err := os.Open(tasks)
	if err != nil {
		return nil
	}
	threads, _ := dir.Readdirnames(-1)
	dir.Close()
	for _, thread := range threads {
		b, err := os.ReadFile(tasks + "/" + thread + "/children")
		if err != nil {
			continue
		}
		for field := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Namespace is a process namespace. The zero value is none.
type Namespace struct{ dev, ino uint64 }

// NamespaceOf returns the process namespace of process, a number or "self", as
// no other is called while it exists.
func NamespaceOf(process string) (Namespace, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+process+"/ns/pid", &st)
	return Namespace{uint64(st.Dev), st.Ino}, err
}

// Restrictions are those that a process cannot get rid of.
type Restrictions struct {
	NoNewPrivs int // 1: set
	Filters    int // of system calls; -1: the kernel does not tell
}

// RestrictionsOf returns those of the process pid.
func RestrictionsOf(pid int) (r Restrictions, err error) {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return r, err
	}
	r.Filters = -1 // before Linux 5.9
	for line := range bytes.Lines(b) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
		switch string(name) {
		case "NoNewPrivs":
			r.NoNewPrivs, err = strconv.Atoi(string(value))
		case "Seccomp_filters":
			r.Filters, err = strconv.Atoi(string(value))
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// Parent is the process that started pid, or adopted it.
func Parent(pid int) (int, error) {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may hold any.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.Atoi(string(fields[1]))
}

// readProc reads a file of /proc, whose size nothing tells beforehand.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 4<<10)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return b, nil
		}
		b = slices.Grow(b[:len(b)+n], 1<<10)
	}
}
