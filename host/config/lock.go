package config

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// SocketLock returns the path of the lock file of a socket, held by the daemon of a state folder that serves it. It is
// not next to the socket, because containers have that folder.
func SocketLock(state, socket string) string {
	if abs, err := filepath.Abs(socket); err == nil {
		socket = abs
	}
	sum := sha256.Sum256([]byte(socket))
	return filepath.Join(state, "socket-"+hex.EncodeToString(sum[:16])+".lock")
}
