package process

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal, and opens both ends. Neither becomes this
// process's own. The other end has no name that anybody may open it by: its file
// in /dev/pts has no permissions, which no confined child can change, and runs in
// namespaces find that folder empty.
func openTerminal(rows, cols uint16) (master, slave *os.File, err error) {
	// Not blocking, so that it waits in the poller and can be closed meanwhile.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("open /dev/ptmx", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	defer func() {
		if err != nil {
			master.Close()
			if slave != nil {
				slave.Close()
			}
		}
	}()
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, os.NewSyscallError("unlock a terminal", err)
	}
	// Not by name: /dev/pts may be another's, or not be mounted.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		err = os.NewSyscallError("open a terminal", errno)
		return nil, nil, err
	}
	slave = os.NewFile(peer, "terminal "+strconv.Itoa(int(peer)))
	if err = unix.Fchmod(int(peer), 0); err != nil {
		return nil, slave, os.NewSyscallError("close a terminal to others", err)
	}
	if err = setSize(master, rows, cols); err != nil {
		return nil, slave, os.NewSyscallError("set the size of a terminal", err)
	}
	return master, slave, nil
}

func setSize(master *os.File, rows, cols uint16) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if err != nil {
		return err
	}
	return set
}

// suspendKey returns the key that stops who reads from the terminal, if there is one now.
func suspendKey(master *os.File) (key byte, ok bool) {
	raw, err := master.SyscallConn()
	if err != nil {
		return 0, false
	}
	raw.Control(func(fd uintptr) {
		var m *unix.Termios
		if m, err = unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			key, ok = m.Cc[unix.VSUSP], m.Lflag&unix.ISIG != 0 && m.Cc[unix.VSUSP] != 0
		}
	})
	return key, ok
}
