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

	// Once only exact searches, tail is what was read and may be the beginning of a
	// secret, and open what of it is to be covered whatever follows.
	inPlace bool
	tail    []byte
	open    []span
}

// roomInPlace is how much a caller has to have room for, so that it is given what comes
// next without a copy.
const roomInPlace = 4 << 10

// Covering returns a factory of readers that mask secrets in bodies, nil if there are no
// secrets.
func Covering(secrets [][]byte) func(body io.Reader) io.Reader {
	m := New(secrets)
	if m == nil {
		return nil
	}
	exact := exactly(secrets)
	return func(body io.Reader) io.Reader { return newReader(body, m, exact) }
}

// Reader returns a reader of text with the secrets in it masked.
func (m *Masker) Reader(text io.Reader) io.Reader {
	r := newReader(text, m, m)
	r.pair.cover = false // no length was announced
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
		if b.inPlace {
			room := len(b.tail) + roomInPlace
			if len(p) >= room {
				if n := b.readInto(p); n > 0 {
					return n, nil
				}
				continue
			}
			if len(b.buf) < room {
				b.buf = make([]byte, room)
			}
			b.ready = b.buf[:b.readInto(b.buf)]
			continue
		}
		n, err := b.from.Read(b.buf)
		if b.read += n; b.read > wholeMask {
			b.pair.m = b.exact
		}
		b.ready, b.err = b.pair.pass(b.pair.streams[0], b.buf[:n], err != nil), err
		if b.pair.m.plain && b.pair.cover {
			w := b.pair.streams[0]
			b.inPlace, b.tail, b.open = true, w.held, w.spans
		}
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

// readInto reads what comes next into p, which has room for more than the tail, covers
// what is secret there, and returns how much of it may be shown. Where secrets are
// searched for as they are, nothing else has to be known of what was before: a large body
// is not copied, which takes longer than the search.
func (b *reader) readInto(p []byte) (show int) {
	kept := copy(p, b.tail)
	n, err := b.from.Read(p[kept:])
	text := p[:kept+n]
	found, hold, begun := b.exact.scan(text)
	if b.err = err; err != nil {
		if hold = 0; begun >= shortestPart {
			found = append(found, span{len(text) - begun, len(text)})
		}
	}
	show = len(text) - hold
	b.tail = append(b.tail[:0], text[show:]...)
	clear(text[show:])
	found = append(found, b.open...)
	b.open = b.open[:0:0]
	for _, s := range found {
		for i := s.from; i < min(s.to, show); i++ {
			text[i] = '*'
		}
		if s.to > show {
			b.open = append(b.open, span{max(0, s.from-show), s.to - show})
		}
	}
	return show
}
