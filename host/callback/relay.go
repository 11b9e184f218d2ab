// Package callback lets a tool have programs run by its caller: an editor, a pager,
// the hooks of a repository, the scripts of packages, which are the caller's own and run where the caller is,
// in its container, as its user and with its environment. The host executes none of
// them.
//
// A Relay belongs to one run. It has a folder in which there is a shim for each
// program that the run may ask for: a link to a copy of this program, which the run
// starts in the program's place. A shim connects to the socket of its Relay, says what it
// was started with, and passes on what it reads and what the program wrote, and ends
// as that does. A program that uses the package begins its main, and the TestMain of
// its tests, with
//
//	if callback.IsShim() {
//		os.Exit(callback.RunShim())
//	}
//
// What is promised:
//
//   - Which program runs is never the run's to say: a Shim has it, or its kind does.
//     A run says which shim, which arguments, which folder and which input.
//   - An editor gets one argument, the path of a file beneath the roots; a pager gets
//     none. So no flag of theirs, with which editors run commands, is the run's.
//   - Scripts are the one kind whose text is the run's to say, since it is in files
//     that only the run reads. The caller's shell runs it, with the rights that the
//     caller has anyway, and only where a policy has allowed the kind for the call.
//   - A program runs in a folder beneath the roots, and of the run's environment it
//     gets what git tells its hooks of the repository, and npm its scripts of the
//     package, and nothing that names a program or leads elsewhere.
//   - A run has MaxPrograms of them, callbacks.Max at a time; what is on its way
//     is bounded. What a shim's socket is sent may be anything.
//   - When the shim is gone, the program is ended; so are all when the run has ended.
//
// What it does not do: it does not keep arguments and input of hooks from being what
// the run likes. A tool that is hostile can so tell a hook anything that git could.
package callback

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

const (
	folderPrefix  = "callbacks-"
	socketName    = "socket"
	maxSocketPath = 100
	// MaxPrograms is how many programs a run has its caller run.
	MaxPrograms = 4096
	// maxBegin is what a shim says of itself at most, in bytes: what fits in a frame
	// to the caller.
	maxBegin = 48 << 10
	// maxPiece is the longest frame of a shim's socket.
	maxPiece = 64 << 10
	// maxFolders is how many folders of a list are looked at: each is resolved, and what
	// that takes is up to who made the links there.
	maxFolders = 256
	// beginWithin is how long a shim has to say what it was started with.
	beginWithin = 10 * time.Second
)

// The frames on a shim's socket: a byte that says which, the length of 4 bytes, and
// what it holds.
const (
	frameBegin  = 'b' // JSON of begin
	frameStdin  = 'i'
	frameEOF    = 'e' // no more stdin
	frameStdout = 'o'
	frameStderr = 'r'
	frameExit   = 'x' // the exit code, one byte
	frameError  = '!' // why there is none
)

// begin is what a shim reports at its start.
type begin struct {
	Name string            `json:"name"`
	Args []string          `json:"args"`
	Cwd  string            `json:"cwd"`
	Env  map[string]string `json:"env"`
}

// Shim is a program that a run may request.
type Shim struct {
	// Name is that of the file in the Relay's folder.
	Name string
	// Kind is one of callbacks.Kinds.
	Kind string
	// Path is the program where the kind does not say which it is: a hook.
	Path string
}

// Config is fixed when a Relay is made.
type Config struct {
	// Folder is made, and removed by Close. Its name is of NewFolder.
	Folder string
	// Program is what shims are links to: a copy of this program whose name is
	// ShimName. The run may execute it, under whatever name and with whatever
	// arguments, and it is a shim and nothing else.
	Program string
	Shims   []Shim
	// Roots are the folders beneath which programs run and files are edited.
	Roots []string
	// Ask has the caller run a program; it is wire.Streams.Callback.
	Ask func(ctx context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (int, error)
	// Begin is called before a program is asked for, and what it returns when it has
	// ended. It may be nil.
	Begin func(Shim) (ended func(exit int, err error))
}

// NewFolder returns a random name of a folder in parent for a Relay.
func NewFolder(parent string) string {
	return filepath.Join(parent, folderPrefix+strings.ReplaceAll(wire.NewExecutionID(), "-", ""))
}

// Relay serves the shims of one run.
type Relay struct {
	config   Config
	ctx      context.Context
	cancel   context.CancelFunc
	listener *net.UnixListener
	all      sync.WaitGroup
	// places holds a token for each shim that is served.
	places chan struct{}
	served int // of accept
}

// Open creates the folder of c and serves its shims until Close. Their programs end with ctx.
func Open(ctx context.Context, c Config) (r *Relay, err error) {
	if err := os.MkdirAll(filepath.Dir(c.Folder), 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for shims: %w", err)
	}
	if err := os.Mkdir(c.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for shims: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(c.Folder)
		}
	}()
	for _, s := range c.Shims {
		if err := os.Symlink(c.Program, filepath.Join(c.Folder, s.Name)); err != nil {
			return nil, fmt.Errorf("make a shim: %w", err)
		}
	}
	listener, err := listen(c.Folder)
	if err != nil {
		return nil, fmt.Errorf("listen for shims: %w", err)
	}
	// A tool may have a user of its own. Who may pass the folders above may connect,
	// and a run may connect to no such socket but its own.
	if err := errors.Join(os.Chmod(filepath.Join(c.Folder, socketName), 0o666), os.Chmod(c.Folder, 0o755)); err != nil {
		listener.Close()
		return nil, fmt.Errorf("open a folder to its run: %w", err)
	}
	r = &Relay{config: c, listener: listener, places: make(chan struct{}, callbacks.Max)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.all.Go(r.accept)
	return r, nil
}

// Close ends the running programs, waits for them, and removes the folder.
func (r *Relay) Close() {
	r.cancel()
	r.listener.Close()
	r.all.Wait()
	os.RemoveAll(r.config.Folder)
}

// Program returns the path that the run must be allowed to execute.
func (r *Relay) Program() string { return r.config.Program }

// Socket returns the path of the socket that the run must be allowed to connect to.
func (r *Relay) Socket() string { return filepath.Join(r.config.Folder, socketName) }

func listen(dir string) (*net.UnixListener, error) {
	path := filepath.Join(dir, socketName)
	if len(path) >= maxSocketPath {
		f, err := openFolder(dir)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		path = filepath.Join(shortPath(f), socketName)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		l.SetUnlinkOnClose(false) // the folder goes as a whole
	}
	return l, err
}

func (r *Relay) accept() {
	for {
		select {
		case r.places <- struct{}{}:
		case <-r.ctx.Done():
			return
		}
		nc, err := r.listener.AcceptUnix()
		if err != nil {
			return
		}
		r.served++
		n := r.served
		r.all.Go(func() {
			defer func() { <-r.places }()
			r.serve(nc, n)
		})
	}
}

// serve serves one shim.
func (r *Relay) serve(nc *net.UnixConn, n int) {
	defer nc.Close()
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { nc.Close() })()
	out := &output{nc: nc}
	nc.SetReadDeadline(time.Now().Add(beginWithin))
	in := bufio.NewReader(nc)
	kind, p, err := read(in)
	if err != nil {
		return
	}
	nc.SetReadDeadline(time.Time{})
	if n > MaxPrograms {
		out.send(frameError, fmt.Appendf(nil, "the call has had its caller run %d programs, and that is all it may", MaxPrograms))
		return
	}
	if kind != frameBegin {
		out.send(frameError, []byte("not the first frame of a shim"))
		return
	}
	shim, q, err := r.request(p)
	if err != nil {
		out.send(frameError, []byte(err.Error()))
		return
	}
	stdin, feed := io.Pipe()
	var reading sync.WaitGroup
	reading.Go(func() {
		err := pump(in, nc, feed)
		if err == io.EOF { // of the input: what follows is the end of the shim
			feed.CloseWithError(err)
			read(in)
			err = errGone
		}
		// Before the program can take the end of what came for the end of its input: its
		// exit code would be of half an input.
		cancel(err)
		feed.CloseWithError(err)
	})
	ended := func(int, error) {}
	if r.config.Begin != nil {
		ended = r.config.Begin(shim)
	}
	exit, err := r.config.Ask(ctx, q, stdin, streamOf{out, frameStdout}, streamOf{out, frameStderr})
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause
	}
	ended(exit, err)
	stdin.Close()
	if err != nil {
		out.send(frameError, []byte(reason(err)))
	} else {
		out.send(frameExit, []byte{byte(exit)})
	}
	nc.Close()
	reading.Wait()
}

func reason(err error) string {
	if e := (*fault.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// pump copies the input of the shim at nc. The error is io.EOF at its end.
func pump(in *bufio.Reader, nc *net.UnixConn, to io.Writer) error {
	for {
		kind, p, err := read(in)
		switch {
		case err != nil:
			return io.ErrUnexpectedEOF
		case kind == frameEOF:
			return io.EOF
		case kind != frameStdin:
			return errors.New("not an input frame of a shim")
		}
		switch err := pass(nc, to, p); err {
		case nil:
		case errGone:
			return err
		default:
			// Nobody reads it. The shim is followed until it ends.
			to = io.Discard
		}
	}
}

var errGone = errors.New("the shim is gone")

// lookAgain is how often it is looked for a shim whose input nobody takes.
const lookAgain = 200 * time.Millisecond

// pass writes p, and gives up if the shim at nc goes away meanwhile. The writer is closed then.
func pass(nc *net.UnixConn, to io.Writer, p []byte) error {
	written := make(chan error, 1)
	go func() {
		_, err := to.Write(p)
		written <- err
	}()
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		select {
		case err := <-written:
			return err
		case <-again.C:
			if hungUp(nc) {
				return errGone
			}
		}
	}
}

// hungUp reports whether the peer has closed nc.
func hungUp(nc *net.UnixConn) (gone bool) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(p, 0)
		gone = n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return gone || err != nil
}

// request returns the request of a shim that was started as p describes.
func (r *Relay) request(p []byte) (shim Shim, q callbacks.Request, err error) {
	var b begin
	if len(p) > maxBegin {
		return shim, q, fmt.Errorf("its arguments and variables are over %d bytes", maxBegin)
	}
	if err := strictjson.Unmarshal(p, &b); err != nil {
		return shim, q, errors.New("not the first frame of a shim")
	}
	i := slices.IndexFunc(r.config.Shims, func(s Shim) bool { return s.Name == b.Name })
	if i < 0 {
		return shim, q, errors.New("the call may ask for no such program")
	}
	shim = r.config.Shims[i]
	for _, a := range b.Args {
		if strings.ContainsRune(a, 0) {
			return shim, q, errors.New("an argument holds a zero byte")
		}
	}
	cwd, ok := r.resolve(b.Cwd)
	if !ok {
		return shim, q, fmt.Errorf("the folder %q is not beneath the roots", b.Cwd)
	}
	b.Cwd = cwd
	q = callbacks.Request{Kind: shim.Kind, Path: shim.Path, Args: b.Args, Cwd: b.Cwd}
	switch shim.Kind {
	case callbacks.Editor, callbacks.SequenceEditor:
		if len(b.Args) != 1 {
			return shim, q, errors.New("an editor is given one file")
		}
		file := b.Args[0]
		if !filepath.IsAbs(file) {
			file = filepath.Join(b.Cwd, file)
		}
		// The file itself may not be a link, which the caller looks at.
		dir, ok := r.resolve(filepath.Dir(filepath.Clean(file)))
		if file = filepath.Join(dir, filepath.Base(file)); !ok || !r.beneath(file) {
			return shim, q, fmt.Errorf("the file %q is not beneath the roots", b.Args[0])
		}
		q.Args = []string{file}
	case callbacks.Pager:
		if len(b.Args) != 0 {
			return shim, q, errors.New("a pager is given no arguments")
		}
	case callbacks.Scripts:
		if len(b.Args) != 2 || b.Args[0] != "-c" || strings.TrimSpace(b.Args[1]) == "" {
			return shim, q, errors.New("a shell for scripts is given -c and one script")
		}
		q.Args = b.Args[1:]
		q.Env = r.filter(shim.Kind, b.Env, b.Cwd)
	default:
		q.Env = r.filter(shim.Kind, b.Env, b.Cwd)
	}
	return shim, q, nil
}

// beneath reports whether path is an absolute one beneath a root, without detours.
func (r *Relay) beneath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && slices.ContainsFunc(r.config.Roots, func(root string) bool { return beneath.Has(root, path) })
}

// resolve returns path, an existing one beneath a root, without links. It reports false if
// there is none or it leads out of its root.
func (r *Relay) resolve(path string) (string, bool) {
	if !r.beneath(path) {
		return "", false
	}
	real, err := beneath.RealPath(path)
	if err != nil {
		return "", false
	}
	for _, root := range r.config.Roots {
		at, err := beneath.RealPath(root)
		if err != nil || !beneath.Has(root, path) || !beneath.Has(at, real) {
			continue
		}
		if rest, err := filepath.Rel(at, real); err == nil {
			return filepath.Join(root, rest), true
		}
	}
	return "", false
}

// stays reports whether path, whose last components may be missing, is beneath a root and no
// link leads out of it.
func (r *Relay) stays(path string) bool {
	clean := filepath.Clean(path)
	if !r.beneath(clean) {
		return false
	}
	if clean != path && strings.Contains(path, "..") { // behind a link that leads elsewhere
		if real, err := beneath.RealPath(path); err != nil {
			return false
		} else if same, err := beneath.RealPath(clean); err != nil || same != real {
			return false
		}
	}
	for at := clean; r.beneath(at); at = filepath.Dir(at) {
		if _, err := os.Lstat(at); errors.Is(err, os.ErrNotExist) {
			continue
		}
		_, ok := r.resolve(at)
		return ok
	}
	return false
}

// kindOfVariable says what a variable for a program may contain.
type kindOfVariable int

const (
	anyText       kindOfVariable = iota + 1
	pathInside                   // beneath the roots, where it is counted from the working folder
	noEditor                     // ":", as git says that there is no editor
	foldersInside                // a list of folders, of which those beneath the roots are given
)

// variables are those that git gives its hooks.
var variables = map[string]kindOfVariable{
	"GIT_DIR": pathInside, "GIT_COMMON_DIR": pathInside, "GIT_WORK_TREE": pathInside, "GIT_INDEX_FILE": pathInside, "GIT_OBJECT_DIRECTORY": pathInside, "GIT_QUARANTINE_PATH": pathInside, "GIT_PREFIX": pathInside,
	"GIT_AUTHOR_NAME": anyText, "GIT_AUTHOR_EMAIL": anyText, "GIT_AUTHOR_DATE": anyText,
	"GIT_COMMITTER_NAME": anyText, "GIT_COMMITTER_EMAIL": anyText, "GIT_COMMITTER_DATE": anyText,
	"GIT_REFLOG_ACTION": anyText, "GIT_EDITOR": noEditor,
}

// scriptVariables are those that npm gives the scripts of packages. What is not among
// them is about the host: npm's own configuration, credentials among it, the paths of
// npm and node there, HOME.
var scriptVariables = map[string]kindOfVariable{
	"npm_lifecycle_event": anyText, "npm_lifecycle_script": anyText, "npm_command": anyText, "npm_config_user_agent": anyText, "NODE_ENV": anyText,
	"INIT_CWD": pathInside, "npm_config_local_prefix": pathInside, "npm_package_json": pathInside,
	"PATH": foldersInside,
}

// packagePrefix is that of the variables with the fields of a package.json.
const packagePrefix = "npm_package_"

// kindOf returns what the variable name may contain for a program of a kind; 0 means that it is
// not passed.
func kindOf(kind, name string) kindOfVariable {
	if kind != callbacks.Scripts {
		return variables[name]
	}
	if v := scriptVariables[name]; v != 0 {
		return v
	}
	if strings.HasPrefix(name, packagePrefix) && !strings.ContainsAny(name, "=\x00") {
		return anyText
	}
	return 0
}

// filter returns env without the variables that a program of the kind must not get.
func (r *Relay) filter(kind string, env map[string]string, cwd string) map[string]string {
	out := map[string]string{}
	for name, value := range env {
		ok := false
		switch kindOf(kind, name) {
		case anyText:
			ok = !strings.ContainsRune(value, 0)
		case noEditor:
			ok = value == ":"
		case foldersInside:
			var inside []string
			list := filepath.SplitList(value)
			for _, dir := range list[:min(len(list), maxFolders)] {
				if !strings.ContainsRune(dir, 0) && r.stays(dir) {
					inside = append(inside, filepath.Clean(dir))
				}
			}
			ok = len(inside) > 0
			value = strings.Join(inside, string(filepath.ListSeparator))
		case pathInside:
			path := value
			if !filepath.IsAbs(path) {
				path = cwd + "/" + path
			}
			// The index that git takes by itself need not be named.
			ok = !strings.ContainsRune(value, 0) && r.stays(path) && (name != "GIT_INDEX_FILE" || filepath.Clean(path) != filepath.Join(cwd, ".git/index"))
		}
		if ok {
			out[name] = value
		}
	}
	return out
}

// output writes frames to a shim.
type output struct {
	mu sync.Mutex // guards writing to nc
	nc net.Conn
}

func (o *output) send(kind byte, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return write(o.nc, kind, p)
}

// streamOf returns a writer of one stream of output.
type streamOf struct {
	*output
	kind byte
}

func (s streamOf) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(len(p), n+maxPiece)]
		if err := s.send(s.kind, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

func write(w io.Writer, kind byte, p []byte) error {
	b := make([]byte, 5, 5+len(p))
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(len(p)))
	_, err := w.Write(append(b, p...))
	return err
}

// read reads one frame.
func read(r io.Reader) (kind byte, p []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxPiece {
		return 0, nil, fmt.Errorf("a frame of %d bytes is over the limit of %d", n, maxPiece)
	}
	p = make([]byte, n)
	_, err = io.ReadFull(r, p)
	return head[0], p, err
}

// readsInput reports whether a shim of that name forwards its input: an editor uses the
// caller's own.
func readsInput(name string) bool {
	return name != callbacks.Editor && name != callbacks.SequenceEditor
}
