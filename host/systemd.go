package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/server"
)

// firstPassed is the first descriptor that systemd passes.
const firstPassed = 3

// activated are the sockets that systemd listens on for this process, each for the
// socket of c with its path. One that c does not name is an error: who called there
// would wait for ever. The variables are gone afterwards, for what this process
// starts.
func activated(c *config.Config) (in inheritance, err error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return in, nil // none, or meant for another process
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxPassed {
		return in, fmt.Errorf("take the sockets of systemd: LISTEN_FDS=%q is not a number of descriptors; start the daemon from its unit", count)
	}
	paths := map[string]string{}
	for _, path := range append([]string{c.Socket, c.Admin}, furtherSockets(c)...) {
		paths[realPath(path)] = path
	}
	in.given = map[string]*server.Given{}
	for fd := firstPassed; fd < firstPassed+n; fd++ {
		unix.CloseOnExec(fd)
		name := "descriptor " + strconv.Itoa(fd)
		if i := fd - firstPassed; i < len(names) && names[i] != "" {
			name = names[i]
		}
		bound, err := server.BoundTo(fd)
		if err != nil {
			return in, fmt.Errorf("take the socket %s of systemd: %w", name, err)
		}
		path, known := paths[realPath(bound)]
		if !known {
			return in, fmt.Errorf("take the socket %s of systemd: no socket of the configuration has its path, %s; name it in toold.json, or disable the unit", name, bound)
		}
		if in.given[path] != nil {
			return in, fmt.Errorf("take the socket %s of systemd: %s is passed twice; disable one of its units", name, bound)
		}
		in.given[path] = &server.Given{FD: fd}
	}
	return in, nil
}

// maxPassed bounds how many sockets are passed.
const maxPassed = 1024

func furtherSockets(c *config.Config) (paths []string) {
	for _, s := range c.Sockets {
		paths = append(paths, s.Path)
	}
	return paths
}

// realPath names a socket by the folder that it is in, whatever links lead there.
func realPath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}

// notify tells systemd a state, where NOTIFY_SOCKET says that it asks.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	c.Write([]byte(state))
}
