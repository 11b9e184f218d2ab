package places

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Denied returns why this user may not connect to the socket at path, as far as that is
// visible, and what to do: who may connect, and who we are. It is for EACCES.
func Denied(path string) string {
	groups, _ := os.Getgroups()
	groups = slices.DeleteFunc(groups, func(g int) bool { return g == os.Getegid() })
	who := fmt.Sprintf("this is uid %d, gid %d", os.Geteuid(), os.Getegid())
	if len(groups) > 0 {
		who += " and groups " + strings.Trim(strings.ReplaceAll(fmt.Sprint(groups), " ", ", "), "[]")
	}
	const change = `or set "socket_mode" and "socket_group" in the daemon's toold.json`
	info, err := os.Lstat(path)
	if err != nil {
		// What is closed is the folder, or one above it.
		dir := filepath.Dir(path)
		for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
			if _, err := os.Lstat(dir); err == nil {
				break
			}
		}
		return fmt.Sprintf("%s may not be entered: %s, and %s; let this user's group enter it (chgrp, chmod g+x), or put the socket elsewhere with --socket", dir, access(dir), who)
	}
	_, gid := owner(info)
	return fmt.Sprintf("the socket has %s, and %s; add this user to group %d (docker run --group-add %d), %s", access(path), who, gid, gid, change)
}

// access is the mode and the owner of a file, for people.
func access(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return "its mode cannot be read"
	}
	uid, gid := owner(info)
	return fmt.Sprintf("mode %04o, owner %d and group %d", info.Mode().Perm(), uid, gid)
}

func owner(info os.FileInfo) (uid, gid uint32) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Uid, s.Gid
	}
	return 0, 0
}
