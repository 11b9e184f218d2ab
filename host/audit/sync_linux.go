package audit

import (
	"os"
	"sync"
	"syscall"
)

// fdatasync syncs the content of f to disk, and only the metadata that is needed to read it again.
func fdatasync(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Control(func(fd uintptr) {
		for {
			if failed = syscall.Fdatasync(int(fd)); failed != syscall.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	if failed != nil {
		return os.NewSyscallError("fdatasync "+f.Name(), failed)
	}
	return nil
}

var readBoot = sync.OnceValue(func() []byte {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return b
})
