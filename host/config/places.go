package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Places is where a daemon and those who call it meet when nobody says
// otherwise. The daemon and its clients both ask here, so that they agree.
type Places struct {
	Instance string // the daemon's name, "0" unless given
	Socket   string // the tool socket
	State    string // the folder of what lasts
	Admin    string // the admin socket
}

// SocketLock is the file by which the daemon of a state folder says that it serves a
// socket. It is not beside the socket: containers have that folder.
func SocketLock(state, socket string) string {
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	sum := sha256.Sum256([]byte(socket))
	return filepath.Join(state, "socket-"+hex.EncodeToString(sum[:16])+".lock")
}

// FindPlaces fills in what is empty in p: from the variables INSTANCE_ID,
// TOOL_SOCKET, TOOLD_STATE_DIR and TOOLD_ADMIN, which getenv reads, and else
// with the defaults of the user who asks. Sockets are in XDG_RUNTIME_DIR, or
// where that would be, or beneath the state folder, which is always there.
func FindPlaces(p Places, getenv func(string) string) Places {
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

	runtime := getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(runtime) {
		runtime = fmt.Sprintf("/run/user/%d", os.Getuid())
		if info, err := os.Stat(runtime); err != nil || !info.IsDir() {
			runtime = p.State
		}
	}
	set(&p.Socket, "TOOL_SOCKET", filepath.Join(runtime, "toold", "tool-"+p.Instance+".sock"))
	return p
}
