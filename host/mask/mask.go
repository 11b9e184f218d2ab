// Package mask finds secrets in output, texts and documents, and puts a placeholder in
// their place: as they are, in the encodings in which programs and servers repeat
// them, cut over writes and over the two streams of a call.
package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// shortestSecret is the length in bytes below which a value is not masked:
	// masking "1" or "yes" would spoil output and hide nothing.
	shortestSecret = 6
	// shortestPart is how much of the beginning of a secret is masked where an
	// output ends with it. What is shorter is shown: every output ends with a
	// byte or two that some secret begins with.
	shortestPart = 4
	// longSecret is the length from which on parts of a secret are masked by
	// themselves. A part of a short one is a word that may mean something else.
	longSecret = 16
)

// Masker finds secrets in text: as they are, in base64 at any alignment, in hexadecimal, and
// each of these as a URL, JSON, HTML or UTF-16 encodes it. Of a secret of longSecret bytes or
// more it also finds every part of at least a third of it and eight bytes, since the rest may
// be in another stream or another request.
//
// It does not find what was derived from a secret in another way: reversed, compressed, spelt
// out with a space between letters.
type Masker struct {
	needles [][]byte // in the order of their length, the longest first
	parts   []parts
	spaces  bool // a needle holds a space, which a form writes as "+"
	fold    bool // upper and lower case are the same; the needles are lower
	plain   bool // escapes are not read
}

// parts finds the parts of one secret that are worth masking.
type parts struct {
	secret []byte
	least  int // bytes of a part
	// Each part of at least that many bytes has a window of window bytes at a
	// multiple of step in it: these are looked for.
	window, step int
}

// New returns a Masker of secrets, nil if there are none.
func New(secrets [][]byte) *Masker {
	m := &Masker{}
	add := func(b []byte) {
		if len(b) >= shortestSecret && !slices.ContainsFunc(m.needles, func(n []byte) bool { return bytes.Equal(n, b) }) {
			m.needles = append(m.needles, b)
			m.spaces = m.spaces || bytes.IndexByte(b, ' ') >= 0
		}
	}
	for _, s := range secrets {
		if s = bytes.TrimSpace(s); len(s) < shortestSecret {
			continue
		}
		add(s)
		for before := range 3 {
			std := base64Within(base64.RawStdEncoding, s, before)
			add(std)
			add([]byte(strings.NewReplacer("+", "-", "/", "_").Replace(string(std))))
		}
		h := hex.AppendEncode(nil, s)
		add(h)
		add(bytes.ToUpper(h))
		if len(s) >= longSecret {
			p := parts{secret: s, least: max(8, (len(s)+2)/3)}
			p.window = (p.least + 1) / 2
			p.step = p.least - p.window + 1
			m.parts = append(m.parts, p)
		}
	}
	if len(m.needles) == 0 {
		return nil
	}
	slices.SortStableFunc(m.needles, func(a, b []byte) int { return len(b) - len(a) })
	return m
}

// base64Within is what stands in base64 for s where so many bytes, modulo 3,
// are before it and any number after: without the characters at both ends that
// depend on these.
func base64Within(e *base64.Encoding, s []byte, before int) []byte {
	enc := e.AppendEncode(nil, append(make([]byte, before), s...))
	return enc[(before*8+5)/6 : (before+len(s))*8/6]
}

// Folded returns m for text whose case was changed, as in the names of headers.
func (m *Masker) Folded() *Masker {
	f := *m
	f.fold, f.needles, f.parts = true, nil, nil
	for _, n := range m.needles {
		f.needles = append(f.needles, lower(n))
	}
	for _, p := range m.parts {
		p.secret = lower(p.secret)
		f.parts = append(f.parts, p)
	}
	return &f
}

// lower is b with its ASCII letters in lower case; every byte stays in place.
func lower(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}

// span is a part of a text, from one offset up to another.
type span struct{ from, to int }

// scan finds what of b is secret, and how much of its end may be the beginning of
// something secret, so that it has to wait for what comes. begun is the longest
// end of b that is the beginning of a secret for certain; it is a part of hold.
func (m *Masker) scan(b []byte) (found []span, hold, begun int) {
	if m.fold {
		b = lower(b)
	}
	for _, n := range m.needles {
		found = appendAll(found, b, n, nil)
		begun = max(begun, beginning(b, n))
	}
	hold = begun
	for _, p := range m.parts {
		found = p.find(found, b)
		hold = max(hold, p.open(b))
	}
	for _, v := range views {
		if m.plain || bytes.IndexByte(b, v.mark) < 0 || v.mark == '+' && !m.spaces {
			continue
		}
		text, at, escapes := v.read(b)
		for _, n := range m.needles {
			found = appendAll(found, text, n, at)
			if k := beginning(text, n); k > 0 {
				begun = max(begun, len(b)-at[len(text)-k])
			}
			// What looks like an escape may be the end of something else and
			// the beginning of a secret: 50%deadbeef.
			for _, e := range escapes {
				for from := e.from + 1; from < e.to; from++ {
					rest, ok := bytes.CutPrefix(n, b[from:e.to])
					if after := text[e.next:]; !ok {
						continue
					} else if bytes.HasPrefix(after, rest) {
						found = append(found, span{from, at[e.next+len(rest)]})
					} else if bytes.HasPrefix(rest, after) {
						begun = max(begun, len(b)-from)
					}
				}
			}
		}
		hold = max(hold, begun, len(b)-at[len(text)]) // an escape that is not whole
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	return found, hold, begun
}

// appendAll appends where needle is in text. at, unless nil, has the positions that the
// bytes of text come from.
func appendAll(found []span, text, needle []byte, at []int) []span {
	for i := 0; ; {
		j := bytes.Index(text[i:], needle)
		if j < 0 {
			return found
		}
		s := span{i + j, i + j + len(needle)}
		i = s.to
		if at != nil {
			s = span{at[s.from], at[s.to]}
		}
		found = append(found, s)
	}
}

// beginning is the length of the longest end of b that needle begins with, and
// that is not all of it.
func beginning(b, needle []byte) int {
	for i := max(0, len(b)-len(needle)+1); i < len(b); i++ {
		j := bytes.IndexByte(b[i:], needle[0])
		if j < 0 {
			return 0
		}
		if i += j; bytes.HasPrefix(needle, b[i:]) {
			return len(b) - i
		}
	}
	return 0
}

func (p *parts) find(found []span, b []byte) []span {
	for at := 0; at+p.window <= len(p.secret); at += p.step {
		w := p.secret[at : at+p.window]
		for i := 0; ; {
			j := bytes.Index(b[i:], w)
			if j < 0 {
				break
			}
			s := span{i + j, i + j + len(w)}
			for k := at; k > 0 && s.from > 0 && b[s.from-1] == p.secret[k-1]; k-- {
				s.from--
			}
			for k := at + len(w); k < len(p.secret) && s.to < len(b) && b[s.to] == p.secret[k]; k++ {
				s.to++
			}
			if s.to-s.from >= p.least {
				found = append(found, s)
			}
			i = max(i+j+1, s.to-len(w)+1)
		}
	}
	return found
}

// open returns the length of an end of b that is a part of the secret and may become
// a longer one; 0 if it is shorter than shortestPart.
func (p *parts) open(b []byte) int {
	if len(b) < shortestPart {
		return 0
	}
	end, longest := b[len(b)-shortestPart:], 0
	for i := 0; longest < p.least; i++ {
		j := bytes.Index(p.secret[i:], end)
		if j < 0 || i+j+len(end) == len(p.secret) {
			break
		}
		i += j
		n := len(end)
		for k := i; k > 0 && n < len(b) && b[len(b)-n-1] == p.secret[k-1]; k-- {
			n++
		}
		longest = max(longest, n)
	}
	return longest
}

// view is an encoding of text.
type view struct {
	mark byte // distinguishes it from plain text
	// escape reads one escape at the beginning of b: what it stands for and
	// how many bytes it has. 0 bytes: it is incomplete; -1: it is not an escape.
	escape func(b []byte) (text []byte, n int)
}

// views are tried one by one, each with all that it can be mixed with.
var views = []view{
	{'%', percentEscape},
	{'+', func(b []byte) ([]byte, int) {
		if b[0] == '+' {
			return []byte{' '}, 1
		}
		return percentEscape(b)
	}},
	{'\\', jsonEscape},
	{'\\', nestedEscape},
	{'&', htmlEscape},
	{0, func(b []byte) ([]byte, int) { // UTF-16 and UTF-32, either order
		if b[0] == 0 {
			return nil, 1
		}
		return nil, -1
	}},
}

// escape is one in what was read: where it is, and where the text continues
// after it.
type escape struct {
	span
	next int
}

// read is b without its escapes. Byte i of text comes from what begins at
// b[at[i]]; at has one offset more, of what follows the text: the end of b, or
// an escape there that is not whole.
func (v *view) read(b []byte) (text []byte, at []int, escapes []escape) {
	text, at = make([]byte, 0, len(b)), make([]int, 0, len(b)+1)
	i := 0
	for i < len(b) {
		if c := b[i]; c != v.mark && c != '%' {
			text, at, i = append(text, c), append(at, i), i+1
			continue
		}
		plain, n := v.escape(b[i:])
		if n == 0 {
			break
		}
		if n < 0 {
			plain, n = b[i:i+1], 1
		}
		for _, c := range plain {
			text, at = append(text, c), append(at, i)
		}
		if n > 1 {
			escapes = append(escapes, escape{span{i, i + n}, len(text)})
		}
		i += n
	}
	return text, append(at, i), escapes
}

func percentEscape(b []byte) ([]byte, int) {
	if b[0] != '%' {
		return nil, -1
	}
	return hexEscape(b, 1, 2)
}

// hexEscape reads so many hexadecimal digits that begin at b[from].
func hexEscape(b []byte, from, digits int) ([]byte, int) {
	for i := from; i < from+digits; i++ {
		if i == len(b) {
			return nil, 0
		}
		if !isHex(b[i]) {
			return nil, -1
		}
	}
	v, _ := strconv.ParseUint(string(b[from:from+digits]), 16, 32)
	if digits == 2 {
		return []byte{byte(v)}, from + digits
	}
	return utf8.AppendRune(nil, rune(v)), from + digits
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func jsonEscape(b []byte) ([]byte, int) {
	if b[0] != '\\' {
		return nil, -1
	}
	if len(b) == 1 {
		return nil, 0
	}
	switch i := strings.IndexByte(`"\/bfnrt`, b[1]); {
	case i >= 0:
		return []byte("\"\\/\b\f\n\r\t"[i : i+1]), 2
	case b[1] == 'x':
		return hexEscape(b, 2, 2)
	case b[1] != 'u':
		return nil, -1
	}
	text, n := hexEscape(b, 2, 4)
	if n <= 0 {
		return text, n
	}
	// One character may be written as a pair of surrogates.
	high, _ := strconv.ParseUint(string(b[2:6]), 16, 16)
	if !utf16.IsSurrogate(rune(high)) || len(b) > 6 && b[6] != '\\' || len(b) > 7 && b[7] != 'u' {
		return text, n
	}
	if len(b) < 8 {
		return nil, 0
	}
	if _, n := hexEscape(b, 8, 4); n == 0 {
		return nil, 0
	} else if n < 0 {
		return text, 6
	}
	low, _ := strconv.ParseUint(string(b[8:12]), 16, 16)
	if r := utf16.DecodeRune(rune(high), rune(low)); r != utf8.RuneError {
		return utf8.AppendRune(nil, r), 12
	}
	return text, 6
}

// nestedEscape is jsonEscape for JSON that stands in texts of JSON, however deep:
// of several backslashes in a row all are of one escape.
func nestedEscape(b []byte) ([]byte, int) {
	run := 0
	for run < len(b) && b[run] == '\\' {
		run++
	}
	switch {
	case run == 0:
		return nil, -1
	case run == len(b):
		return nil, 0
	}
	text, n := jsonEscape(b[run-1:])
	switch {
	case n > 0:
		return text, run - 1 + n
	case n < 0:
		return b[:1], run
	}
	return nil, 0
}

// longestEntity is the length of "&#x0010FFFF;": an ampersand with no semicolon
// within that many bytes begins nothing.
const longestEntity = 12

func htmlEscape(b []byte) ([]byte, int) {
	if b[0] != '&' {
		return nil, -1
	}
	for i, c := range b[1:min(len(b), longestEntity)] {
		switch {
		case c == ';':
			if text := html.UnescapeString(string(b[:i+2])); text != string(b[:i+2]) {
				return []byte(text), i + 2
			}
			return nil, -1
		case isHex(c), 'g' <= c && c <= 'z', i == 0 && c == '#', i == 1 && c == 'X':
		default:
			return nil, -1
		}
	}
	if len(b) < longestEntity {
		return nil, 0
	}
	return nil, -1
}

// writer replaces secrets in one of the two streams of a call, also one that
// is cut in two by the writes or stands in both streams. It holds back
//
//   - the end of what was written that may be the beginning of a secret, in any
//     of the ways in which it may be written, however short, and
//   - an end of four bytes and more that is a part of one;
//
// everything else appears at once. What is held back is shown as soon as it
// cannot be a secret any more, and at the end; except that an end of four bytes
// and more with which a secret begins is masked there, since what wrote it may
// have been killed in the middle of it.
type writer struct {
	pair *pair
	w    io.Writer
	// held and what of it is masked, whatever follows; guarded by pair.mu.
	held  []byte
	spans []span
}

// pair is both streams of a call. In the order in which the host reads them
// they are searched as one text, too.
type pair struct {
	m       *Masker
	longest int // needle
	// cover has what is masked overwritten with as many asterisks.
	cover   bool
	mu      sync.Mutex
	streams [2]*writer
	order   []piece // of what is held; guarded by mu
}

// piece is so many bytes of one stream.
type piece struct {
	of *writer
	n  int
}

// Output returns writers to the two outputs of a call that mask the secrets; without secrets,
// the outputs themselves. Close writes what is held back, and closes neither output. Writes to
// one output come one after another; neither waits for the other.
func Output(stdout, stderr io.Writer, secrets [][]byte) (_, _ io.WriteCloser) {
	m := New(secrets)
	if m == nil {
		return nopCloser{stdout}, nopCloser{stderr}
	}
	p := &pair{m: m, longest: len(m.needles[0])}
	p.streams = [2]*writer{{pair: p, w: stdout}, {pair: p, w: stderr}}
	return p.streams[0], p.streams[1]
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (w *writer) Write(b []byte) (int, error) {
	if out := w.pair.pass(w, b, false); len(out) > 0 {
		if _, err := w.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

func (w *writer) Close() error {
	out := w.pair.pass(w, nil, true)
	if len(out) == 0 {
		return nil
	}
	_, err := w.w.Write(out)
	return err
}

// pass is what may be shown of w's stream when b has come, or with last, of all
// that is left.
func (p *pair) pass(w *writer, b []byte, last bool) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.held = append(w.held, b...)
	p.order = append(p.order, piece{w, len(b)})
	found, hold, begun := p.m.scan(w.held)
	w.spans = append(w.spans, found...)
	across := p.across(w, last)
	if last {
		if hold = 0; begun >= shortestPart {
			w.spans = append(w.spans, span{len(w.held) - begun, len(w.held)})
		}
	} else {
		hold = max(hold, across)
	}
	w.spans = union(w.spans)
	show := len(w.held) - hold
	for _, s := range slices.Backward(w.spans) { // one is shown whole
		if s.from < show && show < s.to {
			show = s.from
		}
	}
	var out []byte
	at := 0
	for len(w.spans) > 0 && w.spans[0].from < show {
		s := w.spans[0]
		out = append(append(out, w.held[at:s.from]...), p.mark(s)...)
		at, w.spans = s.to, w.spans[1:]
	}
	out = append(out, w.held[at:show]...)
	w.held = bytes.Clone(w.held[show:])
	w.spans = slices.Clone(w.spans)
	for i := range w.spans {
		w.spans[i].from -= show
		w.spans[i].to -= show
	}
	p.shown(w, show)
	return out
}

// mark is what stands in the place of s.
func (p *pair) mark(s span) []byte {
	if p.cover {
		return bytes.Repeat([]byte{'*'}, s.to-s.from)
	}
	return []byte(Placeholder)
}

// union is spans in order, those that overlap made one.
func union(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.from < out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// across searches what both streams hold as one text, in the order in which it
// came, and marks what it finds in both. It returns how much of w may be in the
// beginning of a secret there.
func (p *pair) across(w *writer, last bool) (hold int) {
	if len(p.streams[0].held) == 0 || len(p.streams[1].held) == 0 {
		return 0
	}
	type origin struct {
		of *writer
		at int
	}
	var text []byte
	var from []origin
	read := map[*writer]int{}
	cut := false // the end of the text is not that of the streams
	for _, piece := range p.order {
		at := read[piece.of]
		read[piece.of] += piece.n
		n := min(piece.n, p.longest) // no secret farther from a border crosses it
		for i := range n {
			text, from = append(text, piece.of.held[at+i]), append(from, origin{piece.of, at + i})
		}
		cut = n < piece.n
	}
	mark := func(s span) {
		for _, o := range from[s.from:s.to] {
			if n := len(o.of.spans); n > 0 && o.of.spans[n-1].to == o.at {
				o.of.spans[n-1].to++
			} else {
				o.of.spans = append(o.of.spans, span{o.at, o.at + 1})
			}
		}
	}
	begun := 0
	for _, n := range p.m.needles {
		for _, s := range appendAll(nil, text, n, nil) {
			mark(s)
		}
		if !cut {
			begun = max(begun, beginning(text, n))
		}
	}
	if last && begun >= shortestPart {
		mark(span{len(text) - begun, len(text)})
	}
	for _, o := range from[len(text)-begun:] {
		if o.of == w {
			return len(w.held) - o.at
		}
	}
	return 0
}

// shown takes the first n bytes of w out of the order.
func (p *pair) shown(w *writer, n int) {
	for i := range p.order {
		if p.order[i].of == w {
			k := min(n, p.order[i].n)
			p.order[i].n -= k
			n -= k
		}
	}
	p.order = slices.DeleteFunc(p.order, func(x piece) bool { return x.n == 0 })
}

// Bytes returns b with the secrets in it masked.
func (m *Masker) Bytes(b []byte) []byte {
	found, _, _ := m.scan(b)
	if len(found) == 0 {
		return b
	}
	var out []byte
	at := 0
	for _, s := range union(found) {
		out = append(append(out, b[at:s.from]...), Placeholder...)
		at = s.to
	}
	return append(out, b[at:]...)
}

// Text masks secrets in data that is not a stream; see Body and JSON.
func Text(s string, secrets [][]byte) string {
	return string(Body([]byte(s), secrets))
}

// Folded is Text for data that may have been converted to lower or upper case, such as the
// names of hosts and headers.
func Folded(s string, secrets [][]byte) string {
	if m := New(secrets); m != nil {
		return string(m.Folded().Bytes([]byte(s)))
	}
	return s
}

// Body returns data of any format with the secrets masked.
func Body(data []byte, secrets [][]byte) []byte {
	if m := New(secrets); m != nil {
		return m.Bytes(data)
	}
	return data
}

// JSON returns data with the secrets masked in its texts, however they are escaped, and in its
// numbers. The result is JSON.
func JSON(data json.RawMessage, secrets [][]byte) json.RawMessage {
	m := New(secrets)
	if len(data) == 0 || m == nil {
		return data
	}
	out, _, err := Texts(data, func(t JSONText) string { return string(m.Bytes([]byte(t.Text))) })
	if err != nil {
		return m.Bytes(data) // sending it reports that it is not JSON
	}
	return out
}
