//go:build unix && !linux

package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

// ObjectOf returns a text that identifies the open file f among the files that exist at the
// same time.
func ObjectOf(f *os.File) (string, error) {
	var st unix.Stat_t
	if _, err := beneath.RetryEINTR(func() (int, error) { return 0, unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return "", &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return fmt.Sprintf("dev %d ino %d", st.Dev, st.Ino), nil
}
