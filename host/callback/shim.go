package callback

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// exitShim is the exit code of a shim whose program could not be run, as a shell's.
const exitShim = 127

// ShimName is the name of the file that is this program as the shims of runs.
const ShimName = "toold-callback"

// IsShim reports whether this process was started as a shim: a program of a run whose real
// counterpart the caller runs. Only the name of the file decides: what a run can execute as a
// shim is nothing else, whatever name and arguments it is given.
func IsShim() bool {
	if exe, err := os.Readlink("/proc/self/exe"); err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == ShimName {
		return true
	}
	return inFolder()
}

// inFolder reports whether this process was started by the name of a shim.
func inFolder() bool {
	return len(os.Args) > 0 && filepath.IsAbs(os.Args[0]) && strings.HasPrefix(filepath.Base(filepath.Dir(os.Args[0])), folderPrefix)
}

// RunShim runs such a process and returns its exit code.
func RunShim() int {
	if !inFolder() {
		fmt.Fprintf(os.Stderr, "%s: this program stands for a caller's in a run, and does nothing else\n", ShimName)
		return exitShim
	}
	exit, err := shim(os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "toold: %s: %v\n", filepath.Base(os.Args[0]), err)
		return exitShim
	}
	return exit
}

func shim(path string, args []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	dir, name := filepath.Split(path)
	cwd, err := os.Getwd()
	if err == nil {
		cwd, err = filepath.EvalSymlinks(cwd) // not what PWD says
	}
	if err != nil {
		return 0, err
	}
	nc, err := dial(filepath.Clean(dir))
	if err != nil {
		return 0, fmt.Errorf("reach toold: %w", err)
	}
	defer nc.Close()
	first, err := json.Marshal(begin{Name: name, Args: args, Cwd: cwd, Env: environment(name, os.Environ())})
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	send := func(kind byte, p []byte) error {
		mu.Lock()
		defer mu.Unlock()
		return write(nc, kind, p)
	}
	if err := send(frameBegin, first); err != nil {
		return 0, fmt.Errorf("ask toold to have it run: %w", err)
	}
	if readsInput(name) {
		go func() {
			b := make([]byte, 32<<10)
			for {
				n, err := stdin.Read(b)
				if n > 0 && send(frameStdin, b[:n]) != nil {
					return
				}
				if err != nil {
					send(frameEOF, nil)
					return
				}
			}
		}()
	}
	in := bufio.NewReader(nc)
	for {
		kind, p, err := read(in)
		if err != nil {
			return 0, fmt.Errorf("toold no longer waits for it: %w", err)
		}
		switch {
		case kind == frameStdout:
			_, err = stdout.Write(p)
		case kind == frameStderr:
			_, err = stderr.Write(p)
		case kind == frameExit && len(p) == 1:
			return int(p[0]), nil
		case kind == frameError:
			return 0, fmt.Errorf("%s", p)
		}
		if err != nil {
			return 0, err
		}
	}
}

// environment returns the variables that may be passed to the program of a shim.
func environment(shim string, environ []string) map[string]string {
	env := map[string]string{}
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); kindOf(shim, name) != 0 {
			env[name] = value
		}
	}
	return env
}

// dial connects to the socket in dir, however long its path is.
func dial(dir string) (net.Conn, error) {
	path := filepath.Join(dir, socketName)
	if len(path) < maxSocketPath {
		return net.Dial("unix", path)
	}
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.Dial("unix", filepath.Join(shortPath(f), socketName))
}
