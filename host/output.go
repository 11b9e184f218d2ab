package host

import (
	"bytes"
	"container/list"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/toold/toold/host/wire"
)

// masked stands in an output where a secret would have been.
var masked = []byte("[secret]")

// shortestSecret is the length in bytes below which a value is not masked:
// masking "1" or "yes" would spoil output and hide nothing.
const shortestSecret = 6

// maskWriter replaces secrets in what passes through it, also one that is cut
// in two by the writes. It holds back only what could be the beginning of a
// secret, so a prompt without a newline still appears at once.
type maskWriter struct {
	w       io.Writer
	secrets [][]byte
	held    []byte
}

// maskOutput is w with the secrets masked; w itself when there are none.
// Close writes what is held back; it does not close w.
func maskOutput(w io.Writer, secrets [][]byte) io.WriteCloser {
	var long [][]byte
	for _, s := range secrets {
		if s = bytes.TrimSpace(s); len(s) >= shortestSecret {
			long = append(long, s)
		}
	}
	if len(long) == 0 {
		return nopCloser{w}
	}
	return &maskWriter{w: w, secrets: long}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (m *maskWriter) Write(p []byte) (int, error) {
	if err := m.pass(append(m.held, p...), false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pass writes b with its secrets masked and holds back an end of it that may
// go on to be a secret, unless it is the last that comes.
func (m *maskWriter) pass(b []byte, last bool) error {
	var out []byte
	for len(b) > 0 {
		at, n := m.first(b)
		hold := len(b)
		if !last {
			hold -= m.partial(b)
		}
		// A secret that is the beginning of a longer one waits for the rest.
		if at < 0 || hold <= at {
			out, b = append(out, b[:hold]...), b[hold:]
			break
		}
		out = append(append(out, b[:at]...), masked...)
		b = b[at+n:]
	}
	m.held = append([]byte(nil), b...)
	if len(out) == 0 {
		return nil
	}
	_, err := m.w.Write(out)
	return err
}

// first is where the first secret in b begins and how long it is; the longest
// one where two begin at the same place.
func (m *maskWriter) first(b []byte) (at, n int) {
	at = -1
	for _, s := range m.secrets {
		if i := bytes.Index(b, s); i >= 0 && (at < 0 || i < at || i == at && len(s) > n) {
			at, n = i, len(s)
		}
	}
	return at, n
}

// partial is the length of the longest end of b that begins a secret.
func (m *maskWriter) partial(b []byte) int {
	longest := 0
	for _, s := range m.secrets {
		for n := min(len(s)-1, len(b)); n > longest; n-- {
			if bytes.HasPrefix(s, b[len(b)-n:]) {
				longest = n
				break
			}
		}
	}
	return longest
}

func (m *maskWriter) Close() error { return m.pass(m.held, true) }

// capture keeps up to max bytes and counts the rest away: a tool that writes
// more than that is not ended for it.
type capture struct {
	buf bytes.Buffer
	max int64
	cut bool
}

func (c *capture) Write(p []byte) (int, error) {
	room := c.max - int64(c.buf.Len())
	if int64(len(p)) > room {
		c.cut = true
		c.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return c.buf.Write(p)
}

// errNoResult is what results.get answers for an id that it does not hold.
var errNoResult = errors.New("no result is kept under that id: the oldest go first, and the text of a streamed call is not kept")

// results keeps the whole answers of the last calls that did not go to a stream,
// for `toolctl result`: at most maxResults of them and maxResultBytes of
// output. They do not survive a restart.
type results struct {
	mu    sync.Mutex
	byID  map[string]*list.Element // guarded by mu; values in order
	order list.List                // of *stored, oldest first; guarded by mu
	bytes int                      // guarded by mu
}

// stored is one kept answer. It does not change.
type stored struct {
	*wire.Result
	tool    string
	started time.Time
}

const (
	maxResults     = 1000
	maxResultBytes = 64 << 20
)

func size(r *wire.Result) int { return len(r.Stdout) + len(r.Stderr) + len(r.Data) }

func (rs *results) put(tool string, started time.Time, r *wire.Result) {
	if size(r) > maxResultBytes {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = map[string]*list.Element{}
	}
	if e, ok := rs.byID[r.ExecutionID]; ok {
		rs.dropLocked(e)
	}
	rs.byID[r.ExecutionID] = rs.order.PushBack(&stored{r, tool, started})
	rs.bytes += size(r)
	for rs.order.Len() > maxResults || rs.bytes > maxResultBytes {
		rs.dropLocked(rs.order.Front())
	}
}

func (rs *results) dropLocked(e *list.Element) {
	r := rs.order.Remove(e).(*stored)
	delete(rs.byID, r.ExecutionID)
	rs.bytes -= size(r.Result)
}

func (rs *results) get(id string) (*stored, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e, ok := rs.byID[id]
	if !ok {
		return nil, errNoResult
	}
	return e.Value.(*stored), nil
}
