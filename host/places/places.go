// Package places is where a daemon and those who call it meet when nobody says
// otherwise. The daemon asks Find, its clients ask Look: both go by the same
// folders, in the same order. A folder that belongs to another user never counts,
// since that user could put a socket of their own there. The wrapper links this
// package, so it needs the standard library only.
package places

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Places are the names and paths of one daemon.
type Places struct {
	Instance string // the daemon's name, "0" unless given
	Socket   string // the tool socket
	State    string // the folder of what lasts
	Admin    string // the admin socket
}

// Find fills empty fields of p: from the variables INSTANCE_ID, TOOL_SOCKET, TOOLD_STATE_DIR
// and TOOLD_ADMIN, which getenv reads, or else with the defaults of this user. The tool socket
// is in the first of these that exists: the folder that XDG_RUNTIME_DIR names, /run/user/UID,
// and the state folder. The first two are missing where nobody has logged in: with sudo, in a
// cron job, in a container.
func Find(p Places, getenv func(string) string) Places {
	p, sockets := find(p, getenv)
	p.Socket = sockets[0]
	return p
}

// Look is Find for a client, whose variables may differ from those with which the daemon was
// started. Of the default folders it uses the first one with a socket.
func Look(p Places, getenv func(string) string) Places {
	p, sockets := find(p, getenv)
	p.Socket = sockets[0]
	for _, path := range sockets {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			p.Socket = path
			break
		}
	}
	return p
}

// find is p, and where its socket can be; there is at least one place.
func find(p Places, getenv func(string) string) (Places, []string) {
	set := func(field *string, variable, fallback string) {
		if *field == "" {
			*field = getenv(variable)
		}
		if *field == "" {
			*field = fallback
		}
	}
	set(&p.Instance, "INSTANCE_ID", "0")

	state := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		state = filepath.Join("/", getenv("HOME"), ".local", "state")
	}
	set(&p.State, "TOOLD_STATE_DIR", filepath.Join(state, "toold", p.Instance))
	set(&p.Admin, "TOOLD_ADMIN", filepath.Join(p.State, "admin.sock"))

	set(&p.Socket, "TOOL_SOCKET", "")
	if p.Socket != "" {
		return p, []string{p.Socket}
	}
	var sockets []string
	add := func(folder string) {
		sockets = append(sockets, filepath.Join(folder, "toold", "tool-"+p.Instance+".sock"))
	}
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		// One that is not there yet is made by the daemon.
		if _, err := os.Stat(dir); err != nil || own(dir) {
			add(dir)
		}
	}
	if dir := fmt.Sprintf("/run/user/%d", os.Getuid()); own(dir) {
		add(dir)
	}
	add(p.State)
	return p, sockets
}

// own reports whether dir is a folder that belongs to this user or to root. sudo
// can leave the variables of who calls it in place, and root's socket must not be
// in a folder in which somebody else can replace it.
func own(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Getuid())
}
