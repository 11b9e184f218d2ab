package trust

import (
	"fmt"
	"io/fs"
	"syscall"
	"time"
)

// stampOf tells a file from what it was before, and says when it was changed, which
// unlike its modification time no program can set.
func stampOf(fi fs.FileInfo) (stamp string, changed time.Time) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", time.Now()
	}
	changed = time.Unix(st.Ctim.Unix())
	return fmt.Sprintf(" %d %d %d %d %d", st.Dev, st.Ino, fi.Size(), fi.ModTime().UnixNano(), changed.UnixNano()), changed
}
