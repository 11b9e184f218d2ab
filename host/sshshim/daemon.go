package sshshim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/toold/toold/host/strictjson"
)

// Writer responds to a shim. It is safe for concurrent use.
type Writer struct {
	conn io.Writer
	mu   sync.Mutex
	// left is called where the shim takes no more; it may be nil. Guarded by mu.
	left func() error
}

// NewWriter returns a Writer to the shim at conn.
func NewWriter(conn io.Writer) *Writer { return &Writer{conn: conn} }

// Stdout returns a writer to the shim's standard output.
func (w *Writer) Stdout() io.Writer { return stream{w, frameOut} }

// Stderr returns a writer to the shim's standard error.
func (w *Writer) Stderr() io.Writer { return stream{w, frameErr} }

// Exit sends the exit code to the shim. Nothing is sent after it.
func (w *Writer) Exit(code int) error { return w.frame(frameExit, []byte{byte(code)}) }

// OnLeft registers f, to be called when the shim accepts no more output: a host whose output is
// not read would wait.
func (w *Writer) OnLeft(f func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = f
}

func (w *Writer) frame(kind byte, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.conn.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data))), data...))
	if err != nil && w.left != nil {
		w.left()
		w.left = nil
	}
	return err
}

type stream struct {
	w    *Writer
	kind byte
}

func (s stream) Write(p []byte) (n int, err error) {
	for err == nil && n < len(p) {
		piece := p[n:min(len(p), n+maxFrame)]
		err = s.w.frame(s.kind, piece)
		n += len(piece)
	}
	return n, err
}

// ReadRequest reads the request of a shim.
func ReadRequest(r io.Reader) (*Request, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, fmt.Errorf("read what is asked of ssh: %w", err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxRequest {
		return nil, errors.New("read what is asked of ssh: it is too long")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read what is asked of ssh: %w", err)
	}
	var q Request
	if err := strictjson.Unmarshal(b, &q); err != nil {
		return nil, fmt.Errorf("read what is asked of ssh: %w", err)
	}
	return &q, nil
}
