package procfs

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descendants returns the descendants of this process, parents first.
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

// children returns the processes that the threads of process started or adopted.
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

// Namespace identifies a process namespace. The zero value is none.
type Namespace struct{ dev, ino uint64 }

// NamespaceOf returns the process namespace of process, a number or "self". While it exists no
// other namespace is equal to it.
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

// RestrictionsOf returns the restrictions of the process pid.
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

// Parent returns the process that started pid, or adopted it.
func Parent(pid int) (int, error) {
	fields, err := stat("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns the state, the parent and the group of the process or thread with the folder
// dir.
func stat(dir string) (fields [3]string, err error) {
	b, err := readProc(dir + "/stat")
	if err != nil {
		return fields, err
	}
	// The second field is the program's name in parentheses, which may hold any.
	after := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(after) < len(fields) {
		return fields, io.ErrUnexpectedEOF
	}
	for i := range fields {
		fields[i] = string(after[i])
	}
	return fields, nil
}

// StoppedInVfork returns the children of pid in its process group that are stopped while a
// thread of pid waits in the kernel and cannot be stopped: as it does from vfork until its
// child executes a program. The kernel does not tell whether one waits for the other.
func StoppedInVfork(pid int) []int {
	process := "/proc/" + strconv.Itoa(pid)
	own, err := stat(process)
	if err != nil || own[0] != "D" && own[0] != "T" {
		return nil // most often, and it is quick
	}
	threads, err := os.ReadDir(process + "/task")
	if err != nil || !slices.ContainsFunc(threads, func(thread os.DirEntry) bool {
		fields, err := stat(process + "/task/" + thread.Name())
		return err == nil && fields[0] == "D"
	}) {
		return nil
	}
	var stopped []int
	for _, child := range children(strconv.Itoa(pid)) {
		if fields, err := stat("/proc/" + strconv.Itoa(child)); err == nil && fields[0] == "T" && fields[2] == own[2] {
			stopped = append(stopped, child)
		}
	}
	return stopped
}

// readProc reads a file of /proc, whose size is not known beforehand.
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
