package procfs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoOwner says that nobody holds an end of a connection any more.
var errNoOwner = errors.New("no process holds that end of the connection")

// OwnersOf returns the processes that hold the end at local of the TCP connection to remote, in
// this network namespace. If none is found, it returns those that may: of the user who made it,
// and whose descriptors cannot be inspected. It returns none if no process of that user can be
// inspected here. It returns an error if the connection, or every process that may hold it, is
// gone.
func OwnersOf(local, remote netip.AddrPort) ([]int, error) {
	uid, inode, err := tcpSocket(local, remote)
	if err != nil {
		return nil, err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	link := "socket:[" + inode + "]"
	var owners, hidden []int
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		holds, err := holdsFile(pid, link)
		switch {
		case holds:
			owners = append(owners, pid)
		case errors.Is(err, fs.ErrPermission) && isOf(pid, uid):
			hidden = append(hidden, pid)
		}
	}
	switch {
	case len(owners) > 0:
		return owners, nil
	case len(hidden) > 0:
		return hidden, nil
	case uid != os.Geteuid() && os.Geteuid() != 0:
		return nil, nil // another user's, whose processes may not be in /proc at all
	}
	return nil, errNoOwner
}

// holdsFile reports whether process pid has a descriptor whose link is link.
func holdsFile(pid int, link string) (bool, error) {
	folder := "/proc/" + strconv.Itoa(pid) + "/fd"
	dir, err := os.Open(folder)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if target, err := os.Readlink(folder + "/" + name); err == nil && target == link {
			return true, nil
		} else if errors.Is(err, fs.ErrPermission) {
			return false, err
		}
	}
	return false, nil
}

// isOf reports whether one of a process's four user ids is uid, or whether it cannot be
// inspected.
func isOf(pid, uid int) bool {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH)
	}
	for line := range bytes.Lines(b) {
		if ids, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			return slices.Contains(strings.Fields(string(ids)), strconv.Itoa(uid))
		}
	}
	return true
}

// tcpSocket is the owner of the socket of a connection, and its inode number.
func tcpSocket(local, remote netip.AddrPort) (uid int, inode string, err error) {
	for _, table := range []struct {
		file string
		six  bool
	}{{"/proc/net/tcp", false}, {"/proc/net/tcp6", true}} {
		b, err := readProc(table.file)
		if err != nil {
			continue // without IPv6 there is none
		}
		from, to := address(local, table.six), address(remote, table.six)
		for line := range bytes.Lines(b) {
			f := strings.Fields(string(line))
			if len(f) < 10 || !strings.EqualFold(f[1], from) || !strings.EqualFold(f[2], to) || f[9] == "0" {
				continue
			}
			uid, err := strconv.Atoi(f[7])
			if err != nil {
				return 0, "", err
			}
			return uid, f[9], nil
		}
	}
	return 0, "", fmt.Errorf("there is no connection from %v to %v", local, remote)
}

// address returns a as in the kernel's tables: words in the byte order of this machine; in the
// table of IPv6, an IPv4 address is a mapped one.
func address(a netip.AddrPort, six bool) string {
	ip := a.Addr().Unmap()
	var b []byte
	if six {
		v := ip.As16()
		b = v[:]
	} else if ip.Is4() {
		v := ip.As4()
		b = v[:]
	}
	for i := 0; i+4 <= len(b); i += 4 {
		slices.Reverse(b[i : i+4]) // all architectures that toold is built for
	}
	return strings.ToUpper(hex.EncodeToString(b)) + ":" + fmt.Sprintf("%04X", a.Port())
}
