package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/toold/toold/host/webserver"
)

const (
	// maxAdminConns is how many connections of the operator are open at a time. A
	// further one takes the place of one that nothing is asked on, or that was refused.
	maxAdminConns = 256
	// adminPatience is how long an operator may take to take each part of an answer: one
	// may look at a page of it for a while.
	adminPatience = 5 * time.Minute
)

// Admin serves HTTP on a Unix socket that only the daemon's own user can open.
type Admin struct {
	socket *socket
	http   *webserver.Server
}

// ListenAdmin uses the given socket or, if it is nil, binds one at path, with mode 0600 from
// its first moment, under the rules of Listen, with its lock file. Nothing is answered before
// Serve. admits is called once per connection; if it returns an error, the connection gets that
// error and nothing more.
func ListenAdmin(given *Given, path, lock string, admits func(Peer) error, h http.Handler) (*Admin, error) {
	socket, err := openSocket(given, path, lock, 0o600, -1)
	if err != nil {
		return nil, err
	}
	type refusal struct{}
	return &Admin{socket: socket, http: webserver.New(webserver.Config{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err, _ := r.Context().Value(refusal{}).(error); err != nil {
				w.Header().Set("Connection", "close")
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			defer webserver.Hold(w, r)()
			h.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			_, p, err := identify(c.(*net.UnixConn))
			if err == nil {
				err = admits(p)
			}
			return context.WithValue(ctx, refusal{}, err)
		},
		MaxConns: maxAdminConns, MaxHeader: 64 << 10, Patience: adminPatience,
	})}, nil
}

// Serve answers requests until Shutdown, and then returns nil.
func (a *Admin) Serve() error {
	return a.http.Serve(heldListener{a.socket})
}

// Shutdown lets requests finish until ctx ends, then ends them, and removes the socket and its
// lock.
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

// Pause, Resume, Copy, Leave and Claim of an Admin are those of a Server; requests that are
// being answered go on, and its connections are not passed on.
func (a *Admin) Pause()                { a.socket.pause() }
func (a *Admin) Resume()               { a.socket.resume() }
func (a *Admin) Copy() (*Given, error) { return a.socket.copy() }
func (a *Admin) Leave()                { a.socket.keep() }
func (a *Admin) Claim()                { a.socket.claim() }

// Path returns the path of the socket.
func (a *Admin) Path() string { return a.socket.path }
