package process

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/toold/toold/host/confine"
)

// Between the daemon and a supervisor, which are the same program, are two
// sockets that carry frames: four bytes of length, little endian, then JSON. On
// one are runs and reports. Behind the frame of a run come its lists, as they
// are; its first byte carries descriptors: 0, 1, 2 of the child, its working
// folder, and perhaps its network. On the other is what becomes of a run under way, so that each
// socket has one reader that waits for nothing else.

// maxFrame is beyond any frame, and any lists: arguments, environment and paths.
const maxFrame = 16 << 20

// order is a message of the daemon about a current run.
type order struct {
	// N is which run it is about.
	N int `json:"n"`
	// Stopping says that a key was typed which stops the run: see freeStopping.
	Stopping bool `json:"stopping,omitempty"`
	// Signal goes to the child's process group.
	Signal int `json:"signal,omitempty"`
	// Terminate sends SIGTERM to the whole tree.
	Terminate bool `json:"terminate,omitempty"`
	// Kill ends the child, and with it the tree.
	Kill bool `json:"kill,omitempty"`
}

// spec describes one run.
type spec struct {
	// N is which run of its supervisor it is.
	N       int    `json:"n"`
	Path    string `json:"path"`
	Confine bool   `json:"confine,omitempty"`
	// Filter has system calls judged; Lines are then the only command lines
	// for a shell, unless AnyLine.
	Filter  bool `json:"filter,omitempty"`
	AnyLine bool `json:"any_line,omitempty"`
	// Offline leaves it without a network, where it has no filter.
	Offline bool `json:"offline,omitempty"`
	// Network says that a fifth descriptor comes with it: of egress.Gate.Start.
	Network bool `json:"network,omitempty"`
	// Terminal says that 1 of the child is its controlling terminal; Jobs that it is
	// told when the child was stopped, and the child is continued by a signal.
	Terminal bool `json:"terminal,omitempty"`
	Jobs     bool `json:"jobs,omitempty"`
	// ABI is the version of Landlock that is used.
	ABI int `json:"abi,omitempty"`
	// Dir is the working folder; the descriptor says which one it is.
	Dir  string          `json:"dir"`
	User *confine.UserID `json:"user,omitempty"`
	// Sizes are the bytes of each of lists.
	Sizes []int `json:"sizes"`

	lists `json:"-"`
}

// lists are joined strings and not JSON, which would change bytes that are not UTF-8: an
// argument must arrive unchanged.
type lists struct {
	Args, Env, Lines, Write, Exec, Read, Hide, Show, Sockets []byte
	// Interpreters is the JSON of Confine.Interpreters, or empty.
	Interpreters []byte
}

func (l *lists) all() []*[]byte {
	return []*[]byte{&l.Args, &l.Env, &l.Lines, &l.Write, &l.Exec, &l.Read, &l.Hide, &l.Show, &l.Sockets, &l.Interpreters}
}

// reportFrame is a message of a supervisor.
type reportFrame struct {
	// Ready is the first one: it takes orders.
	Ready bool `json:"ready,omitempty"`
	// Begun says that the child of a run with a terminal executes its program: before, a
	// key that stops it would stop it between vfork and execve, and its supervisor with it.
	Begun bool `json:"begun,omitempty"`
	// Stopped says that the child was stopped, by a signal.
	Stopped bool `json:"stopped,omitempty"`
	// Exit is the end of a run.
	Exit *exitReport `json:"exit,omitempty"`
	// Fail says why a run did not begin.
	Fail *failReport `json:"fail,omitempty"`
}

type exitReport struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
	// Left says that processes of the run are alive and could not be killed.
	Left bool `json:"left,omitempty"`
	// Programs are what the run executed beside its own program, as Exit has
	// it.
	Programs []confine.Program `json:"programs,omitempty"`
	Executed int               `json:"executed,omitempty"`
	Refused  int               `json:"refused,omitempty"`
}

type failReport struct {
	// Step is what failed: confine.StepExec, or words for the log.
	Step  string `json:"step"`
	Errno int    `json:"errno,omitempty"`
	Text  string `json:"text,omitempty"`
}

func encodeFrame(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, 4+len(body))
	binary.LittleEndian.PutUint32(frame, uint32(len(body)))
	copy(frame[4:], body)
	return frame, nil
}

func encodeSpec(sp *spec) ([]byte, error) {
	all := sp.all()
	sp.Sizes = make([]int, len(all))
	for i, list := range all {
		sp.Sizes[i] = len(*list)
	}
	frame, err := encodeFrame(sp)
	for _, list := range all {
		frame = append(frame, *list...)
	}
	return frame, err
}

func decodeSpec(r io.Reader) (*spec, error) {
	sp := &spec{}
	if err := decodeFrame(r, sp); err != nil {
		return nil, err
	}
	all, size := sp.all(), 0
	if len(sp.Sizes) != len(all) {
		return nil, fmt.Errorf("read control frame: %d lists, not %d", len(sp.Sizes), len(all))
	}
	for _, n := range sp.Sizes {
		if n < 0 || n > maxFrame-size {
			return nil, fmt.Errorf("read control frame: its lists are over the limit of %d bytes", maxFrame)
		}
		size += n
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read control frame: %w", err)
	}
	for i, n := range sp.Sizes {
		*all[i], b = b[:n:n], b[n:]
	}
	return sp, nil
}

func decodeFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxFrame {
		return fmt.Errorf("read control frame: %d bytes is over the limit of %d", n, maxFrame)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
