package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/iotest"
)

// memory is a connection that takes writes, and gives what it has in the largest pieces.
type memory struct {
	net.Conn
	writes int
	wrote  bytes.Buffer
	fails  error
	gives  *bytes.Reader
}

func (m *memory) Read(p []byte) (int, error) { return m.gives.Read(p) }

func (m *memory) Write(p []byte) (int, error) {
	if m.writes++; m.fails != nil {
		return 0, m.fails
	}
	return m.wrote.Write(p)
}

// What is written while it is held is one write, in its order, and what is read is what
// came, whatever is asked for at a time.
func TestBulk(t *testing.T) {
	all := make([]byte, 1<<20)
	for i := range all {
		all[i] = byte(rand.Int())
	}
	m := &memory{gives: bytes.NewReader(all)}
	b := &bulk{Conn: m}
	b.hold()
	b.hold()
	b.Write([]byte("one "))
	if err := b.release(); err != nil || m.writes != 0 {
		t.Errorf("%v, %d writes", err, m.writes)
	}
	b.Write([]byte("two "))
	if err := b.release(); err != nil || m.writes != 1 {
		t.Errorf("%v, %d writes", err, m.writes)
	}
	b.Write([]byte("three"))
	if err := (*bulk)(nil).release(); err != nil || m.wrote.String() != "one two three" || m.writes != 2 {
		t.Errorf("%q in %d writes, %v", m.wrote.String(), m.writes, err)
	}
	var got bytes.Buffer
	asked, more := make([]byte, 100_000), false
	for {
		size := 1000 // of the first, which is not to need a buffer
		if got.Len() > 0 {
			size = 1 + rand.IntN(len(asked))
		}
		n, err := b.Read(asked[:size])
		got.Write(asked[:n])
		if more = more || b.more(); err == io.EOF {
			break
		}
		if b.buf != nil && got.Len() < bulkFrom {
			t.Fatalf("it has a buffer after %d bytes", got.Len())
		}
	}
	if !bytes.Equal(got.Bytes(), all) || !more || b.more() {
		t.Errorf("%d bytes were read, not as they came", got.Len())
	}
	// TLS was told that this is written: what would follow it is not.
	m.fails = errors.New("gone")
	b.hold()
	if _, err := b.Write([]byte("lost")); err != nil {
		t.Error(err)
	}
	if err := b.release(); err != m.fails {
		t.Error(err)
	}
	m.fails = nil
	if _, err := b.Write([]byte("after")); err == nil || m.wrote.Len() != len("one two three") {
		t.Errorf("%v, %q", err, m.wrote.String())
	}
}

// records reads of a bulk what TLS does, a record at a time.
type records struct{ *bulk }

func (r records) Read(p []byte) (int, error) { return r.bulk.Read(p[:min(len(p), 16<<10)]) }
func (r records) Close() error               { return nil }

// counting counts what is written, and how often; it fails after some of it.
type counting struct {
	bytes.Buffer
	writes int
	room   int
}

func (c *counting) Write(p []byte) (int, error) {
	if c.writes++; c.Len()+len(p) > c.room {
		return 0, errors.New("gone")
	}
	return c.Buffer.Write(p)
}

// A body of unknown length is sent on in larger pieces than it comes in, whole, and with
// what went wrong at either end.
func TestGathered(t *testing.T) {
	all := bytes.Repeat([]byte("all of it, "), 1<<17)
	broken := errors.New("broken off")
	for name, tt := range map[string]struct {
		from io.Reader
		room int
		want error
	}{
		"whole":      {bytes.NewReader(all), len(all), nil},
		"broken off": {io.MultiReader(bytes.NewReader(all), iotest.ErrReader(broken)), len(all), broken},
		"lost":       {bytes.NewReader(all), len(all) / 2, errors.New("gone")},
	} {
		b := &bulk{Conn: &stream{from: tt.from}}
		to := &counting{room: tt.room}
		n, err := (&gathered{records{b}, b}).WriteTo(to)
		if int(n) != to.Len() || fmt.Sprint(err) != fmt.Sprint(tt.want) || !bytes.HasPrefix(all, to.Bytes()) || tt.room == len(all) && to.Len() != len(all) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if most := len(all)/(32<<10) + bulkFrom/(16<<10); to.writes > most {
			t.Errorf("%s: %d writes, over %d", name, to.writes, most)
		}
	}
}

// stream is a connection that reads from.
type stream struct {
	net.Conn
	from io.Reader
}

func (s *stream) Read(p []byte) (int, error) { return s.from.Read(p) }
