package egress

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

const (
	// maxHeld bounds what is in memory of one request until it is sent on, in bytes:
	// a body that is hashed for a signature, the references of a push. maxHeldRun
	// bounds that of one run at a time, maxHeldAll that of all, and what hosts said of
	// their references beside it, by which a push over ssh is checked.
	maxHeld    = 16 << 20
	maxHeldRun = 32 << 20
	maxHeldAll = 128 << 20
	// heldIdle is how long a process may send nothing of it, heldTime how long all of
	// it may take.
	heldIdle = 10 * time.Second
	heldTime = time.Minute
	// firstPiece and maxPiece bound what is allocated at a time for a body of unknown
	// length.
	firstPiece = 4 << 10
	maxPiece   = 256 << 10
)

var (
	errHeldLarge = errors.New("its body is over the 16 MiB that toold holds before it sends it on; send less at a time")
	errHeldMany  = errors.New("toold holds too much for other requests before it sends it on; try again")
	errHeldSlow  = errors.New("its body did not come in time: toold waits 10 s for more of it and 60 s for all, since it holds it before it sends it on; try again")
)

// holding counts what is in memory of one request.
type holding struct {
	run *run
	n   atomic.Int64
}

// take counts n more bytes. The error is why they may not be read; they are counted
// until end even so.
func (h *holding) take(n int) error {
	full := h.takeOfHost(n)
	if h.n.Load() > maxHeld {
		return errHeldLarge
	}
	return full
}

// takeOfHost is take for bytes that the process did not send, which may be more.
func (h *holding) takeOfHost(n int) error {
	h.n.Add(int64(n))
	run, all := h.run.held.Add(int64(n)), h.run.gate.held.Add(int64(n))
	// No run gets more than is then left for others: whatever some hold, there is room
	// for a run that holds little.
	if run > maxHeldRun || run > maxHeldAll-all {
		return errHeldMany
	}
	return nil
}

// end releases all that was counted.
func (h *holding) end() {
	n := h.n.Swap(0)
	h.run.held.Add(-n)
	h.run.gate.held.Add(-n)
}

// heldStatus returns the status for an error of holding; 0: it is another error.
func heldStatus(err error) int {
	switch {
	case errors.Is(err, errHeldLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errHeldMany):
		return http.StatusServiceUnavailable
	case errors.Is(err, errHeldSlow):
		return http.StatusRequestTimeout
	}
	return 0
}

// reader reads r, within the time limits and as long as what was read may be held.
// readBy sets the read deadline of the connection; its caller resets it.
func (h *holding) reader(r io.Reader, readBy func(time.Time)) *heldReader {
	return &heldReader{h, r, readBy, time.Now().Add(heldTime)}
}

type heldReader struct {
	h      *holding
	r      io.Reader
	readBy func(time.Time)
	until  time.Time
}

func (r *heldReader) Read(p []byte) (int, error) {
	n, err := r.wait(p)
	if full := r.h.take(n); full != nil {
		return 0, full
	}
	return n, err
}

// wait reads without counting.
func (r *heldReader) wait(p []byte) (int, error) {
	by := time.Now().Add(heldIdle)
	if r.until.Before(by) {
		by = r.until
	}
	r.readBy(by)
	n, err := r.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errHeldSlow
	}
	return n, err
}

// hostReader reads what a host sends, as long as what was read may be held.
type hostReader struct {
	h *holding
	r io.Reader
}

func (r hostReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if full := r.h.takeOfHost(n); full != nil {
		return 0, full
	}
	return n, err
}

// heldBody is a whole body in memory, held until it is closed.
type heldBody struct {
	h      *holding
	pieces [][]byte
	size   int64
	hash   string // SHA-256 in hexadecimal
}

// hold reads a body to its end. If that fails, it may still be counted.
func (h *holding) hold(body io.Reader, readBy func(time.Time)) (*heldBody, error) {
	b := &heldBody{h: h}
	hash := sha256.New()
	r := h.reader(body, readBy)
	for size := firstPiece; ; size = min(2*size, maxPiece) {
		if err := h.take(size); err != nil { // before there is any of it
			return nil, err
		}
		piece := make([]byte, size)
		n, err := 0, error(nil)
		for n < size && err == nil {
			var k int
			k, err = r.wait(piece[n:])
			n += k
		}
		hash.Write(piece[:n])
		b.size += int64(n)
		if b.pieces = append(b.pieces, piece[:n]); err == io.EOF {
			b.hash = hex.EncodeToString(hash.Sum(nil))
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (b *heldBody) Read(p []byte) (int, error) {
	for len(b.pieces) > 0 && len(b.pieces[0]) == 0 {
		b.pieces = b.pieces[1:]
	}
	if len(b.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.pieces[0])
	b.pieces[0] = b.pieces[0][n:]
	return n, nil
}

// Close may be called during a Read.
func (b *heldBody) Close() error {
	b.h.end()
	return nil
}
