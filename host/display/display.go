// Package display filters what programs write to a terminal that is somebody else's.
package display

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Writer passes on what a terminal shows: text, and those control sequences
// that move the cursor, erase, or change how text looks. It leaves out all others,
// among them those to which a terminal answers as if somebody had typed (reports of
// its state, its answerback), and those that set its title, its clipboard, its
// colours or its keys.
//
// Each sequence is passed on whole or not at all, and no part of one is held by the
// terminal when a write ends: it stays in the state of showing text, whoever writes to
// it next. What ends in the middle of one, or of a character, is left out.
//
// It takes the terminal to read UTF-8. Bytes that are not UTF-8, which would be control
// characters to others, become U+FFFD.
type Writer struct {
	w     io.Writer
	state state
	seq   []byte // what is held of a sequence or a character
	need  int    // bytes of that character
	out   []byte
}

type state uint8

const (
	showsText state = iota
	inRune
	inEscape       // after ESC
	inIntermediate // ... and one of " " to "/"
	inControl      // after ESC [
	inString       // of an OSC, DCS, SOS, PM or APC: nothing of it is passed on
	inStringEscape // after ESC in one
)

const (
	charENQ, charBEL, charCAN, charSUB, charESC = 0x05, 0x07, 0x18, 0x1a, 0x1b

	// longestSequence is the length in bytes of one that is passed on.
	longestSequence = 128
)

// New returns a Writer to w.
func New(w io.Writer) *Writer { return &Writer{w: w} }

// Write passes on those parts of p that a terminal displays.
func (d *Writer) Write(p []byte) (int, error) {
	d.out = d.out[:0]
	for i := 0; i < len(p); {
		if d.state == showsText {
			n := plainText(p[i:])
			d.out = append(d.out, p[i:i+n]...)
			if i += n; i == len(p) {
				break
			}
		}
		d.next(p[i])
		i++
	}
	if len(d.out) == 0 {
		return len(p), nil
	}
	if _, err := d.w.Write(d.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// plainText is how many of the first bytes of p are ASCII that is shown.
func plainText(p []byte) int {
	for i, c := range p {
		if c >= utf8.RuneSelf || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return i
		}
	}
	return len(p)
}

// next takes one byte.
func (d *Writer) next(c byte) {
	switch d.state {
	case showsText:
		switch {
		case c == charESC:
			d.begin(inEscape, c)
		case c == charENQ:
		case c < utf8.RuneSelf:
			d.out = append(d.out, c)
		case c >= 0xc2 && c <= 0xf4:
			d.begin(inRune, c)
			d.need = 2
			if c >= 0xe0 {
				d.need++
			}
			if c >= 0xf0 {
				d.need++
			}
		default:
			d.out = utf8.AppendRune(d.out, utf8.RuneError)
		}
	case inRune:
		if c&0xc0 != 0x80 {
			d.broken()
			d.again(c)
			return
		}
		if d.seq = append(d.seq, c); len(d.seq) < d.need {
			return
		}
		d.state = showsText
		switch r, _ := utf8.DecodeRune(d.seq); {
		case r == utf8.RuneError && !bytes.Equal(d.seq, []byte("\ufffd")):
			d.broken()
		case r >= 0xa0: // what is below are controls, as of ESC and a letter
			d.out = append(d.out, d.seq...)
		}
	case inEscape:
		switch {
		case c == charESC:
		case c == '[':
			d.seq, d.state = append(d.seq, c), inControl
		case strings.IndexByte("]PX^_", c) >= 0:
			d.state = inString
		case c >= 0x20 && c <= 0x2f:
			d.seq, d.state = append(d.seq, c), inIntermediate
		case c < 0x20 || c > 0x7e:
			d.again(c)
		default:
			d.end(c, strings.IndexByte("78=>MDEH", c) >= 0)
		}
	case inIntermediate:
		switch {
		case c >= 0x20 && c <= 0x2f:
			d.seq = append(d.seq[:1], c, c) // two, which are never passed on
		case c < 0x20 || c > 0x7e:
			d.again(c)
		default:
			// Which letters are lines of a frame.
			d.end(c, len(d.seq) == 2 && strings.IndexByte("()*+", d.seq[1]) >= 0 && strings.IndexByte("0AB", c) >= 0)
		}
	case inControl:
		switch {
		case c >= 0x20 && c <= 0x3f:
			if len(d.seq) <= longestSequence {
				d.seq = append(d.seq, c)
			}
		case c < 0x20 || c > 0x7e:
			d.again(c)
		default:
			d.end(c, len(d.seq) < longestSequence && shown(d.seq[2:], c))
		}
	case inString:
		switch c {
		case charBEL, charCAN, charSUB:
			d.state = showsText
		case charESC:
			d.state = inStringEscape
		case '\n':
			// A terminal would go on. One that is never ended would hide all that
			// follows.
			d.again(c)
		}
	case inStringEscape:
		d.state = showsText
		if c != '\\' {
			d.begin(inEscape, charESC)
			d.next(c)
		}
	}
}

func (d *Writer) begin(s state, c byte) {
	d.seq, d.state = append(d.seq[:0], c), s
}

// end ends a sequence by its last byte.
func (d *Writer) end(c byte, pass bool) {
	if d.state = showsText; pass {
		d.out = append(append(d.out, d.seq...), c)
	}
}

// again leaves out what is held, and takes c as the first byte after it.
func (d *Writer) again(c byte) {
	d.state = showsText
	d.next(c)
}

// broken shows bytes that are no character, as a terminal does.
func (d *Writer) broken() {
	for range d.seq {
		d.out = utf8.AppendRune(d.out, utf8.RuneError)
	}
}

// shownModes are those of CSI ? h and l that may be set and reset: of the cursor and
// its keys, lines that wrap, the other screen, marked pastes and whole updates. Those
// that report the mouse or the focus are not among them.
var shownModes = []string{"1", "5", "6", "7", "12", "25", "47", "1047", "1048", "1049", "2004", "2026"}

// shown reports whether the control sequence with these parameters and this last
// byte changes what is shown and nothing else.
func shown(params []byte, last byte) bool {
	own, rest := byte(0), string(params)
	if rest != "" && strings.IndexByte("<=>?", rest[0]) >= 0 {
		own, rest = rest[0], rest[1:]
	}
	numbers := strings.TrimRight(rest, " !\"#$%&'()*+,-./")
	if strings.Trim(numbers, "0123456789:;") != "" {
		return false
	}
	switch between := rest[len(numbers):]; {
	case own == 0 && between == "":
		switch last {
		case 'h', 'l': // 2 would lock the keyboard
			return numbers == "4"
		case 'T': // with more of them it asks for the mouse
			return !strings.Contains(numbers, ";")
		}
		return strings.IndexByte("@ABCDEFGHIJKLMPSXZ`abdefgmrsu", last) >= 0
	case own == '?' && between == "":
		if last == 'J' || last == 'K' {
			return true
		}
		if last != 'h' && last != 'l' {
			return false
		}
		for mode := range strings.SplitSeq(numbers, ";") {
			if !slices.Contains(shownModes, mode) {
				return false
			}
		}
		return true
	case own == 0 && between == " ":
		return last == 'q' // the cursor's form
	case own == 0 && between == "!":
		return last == 'p' // all as it was
	}
	return false
}
