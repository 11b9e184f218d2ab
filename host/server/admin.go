package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Admin serves HTTP on a Unix socket that only the daemon's own user can open.
type Admin struct {
	socket *socket
	http   http.Server
}

// ListenAdmin binds the socket at path, with mode 0600 from its first moment,
// and under the same rules as Listen. Nobody is answered before Serve.
func ListenAdmin(path string, h http.Handler) (*Admin, error) {
	socket, err := bind(path, 0o600)
	if err != nil {
		return nil, err
	}
	// No write timeout: a profile takes as long as was asked for.
	return &Admin{socket: socket, http: http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}}, nil
}

// Serve answers until Shutdown, and then returns nil.
func (a *Admin) Serve() error {
	err := a.http.Serve(a.socket.UnixListener)
	if !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Shutdown lets requests finish until ctx ends, ends them then, and removes the
// socket and its lock.
func (a *Admin) Shutdown(ctx context.Context) error {
	defer a.socket.release()
	a.socket.close()
	err := a.http.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // whoever closed the listener first, it is closed
	}
	if err != nil {
		a.http.Close()
	}
	return err
}
