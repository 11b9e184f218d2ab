package mask

import (
	"io"
	"slices"
)

// exactly returns a Masker that finds secrets as they are, and in no other way.
func exactly(secrets [][]byte) *Masker {
	m := &Masker{plain: true}
	for _, v := range secrets {
		if len(v) >= shortestSecret {
			m.needles = append(m.needles, v)
		}
	}
	slices.SortStableFunc(m.needles, func(a, b []byte) int { return len(b) - len(a) })
	return m
}

// wholeMask is how much of a body is searched for a secret in every way in which it
// may be written; beyond that it is searched for as it is, which is fast.
const wholeMask = 256 << 10

// reader is the body of an answer with the secrets in it overwritten by asterisks,
// so that its length stays.
type reader struct {
	from  io.Reader
	pair  *pair
	exact *Masker
	read  int
	buf   []byte
	ready []byte
	err   error
}

// Covering returns what gives readers of bodies in which secrets are covered. It is nil
// when there is nothing to mask.
func Covering(secrets [][]byte) func(body io.Reader) io.Reader {
	m := New(secrets)
	if m == nil {
		return nil
	}
	exact := exactly(secrets)
	return func(body io.Reader) io.Reader { return newReader(body, m, exact) }
}

// Reader returns what reads from text with the secrets in it masked.
func (m *Masker) Reader(text io.Reader) io.Reader {
	r := newReader(text, m, m)
	r.pair.cover = false // nobody was told a length
	return r
}

func newReader(from io.Reader, m, exact *Masker) *reader {
	p := &pair{m: m, longest: len(m.needles[0]), cover: true}
	p.streams = [2]*writer{{pair: p}, {pair: p}}
	return &reader{from: from, pair: p, exact: exact, buf: make([]byte, 32<<10)}
}

func (b *reader) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		n, err := b.from.Read(b.buf)
		if b.read += n; b.read > wholeMask {
			b.pair.m = b.exact
		}
		b.ready, b.err = b.pair.pass(b.pair.streams[0], b.buf[:n], err != nil), err
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}
