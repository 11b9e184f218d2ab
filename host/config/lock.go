package config

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// SocketLock is the file by which the daemon of a state folder says that it serves a
// socket. It is not beside the socket: containers have that folder.
func SocketLock(state, socket string) string {
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	sum := sha256.Sum256([]byte(socket))
	return filepath.Join(state, "socket-"+hex.EncodeToString(sum[:16])+".lock")
}
