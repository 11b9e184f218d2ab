package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

// ObjectOf returns a text that identifies the open file f: no other file has the same, not even
// one created later in its place with the same inode number.
func ObjectOf(f *os.File) (string, error) {
	var st unix.Statx_t
	_, err := beneath.RetryEINTR(func() (int, error) {
		return 0, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return "", &os.PathError{Op: "statx", Path: f.Name(), Err: err}
	}
	made := ""
	if st.Mask&unix.STATX_BTIME != 0 { // not every file system knows
		made = fmt.Sprintf(" made %d.%09d", st.Btime.Sec, st.Btime.Nsec)
	}
	return fmt.Sprintf("dev %d:%d ino %d%s", st.Dev_major, st.Dev_minor, st.Ino, made), nil
}
