package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openFolder needs no right to read the folder, only to pass through it.
const openFolder = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// pathOf is where the open folder f is now.
func pathOf(f *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}
