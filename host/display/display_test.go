package display

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// passed is what a terminal gets of text, written in pieces of n bytes.
func passed(t testing.TB, text string, n int) string {
	var b bytes.Buffer
	d := New(&b)
	for piece := range slices.Chunk([]byte(text), n) {
		if m, err := d.Write(piece); m != len(piece) || err != nil {
			t.Fatal(m, err)
		}
	}
	return b.String()
}

func TestDisplay(t *testing.T) {
	for _, same := range []string{
		"", "text\r\n\tand\x08 bell\x07", "gr\u00fc\u00dfe \u4f60\u597d \U0001f600", "\u00a0\u07ff\ufffd", "\x00\x0e\x0f\x7f",
		"\x1b[31mred\x1b[m \x1b[1;38;5;12m \x1b[38:2::1:2:3mx\x1b[0m\x1b[K", "\x1b[2J\x1b[H\x1b[10;20H\x1b[3A\x1b[?25l\x1b[?25h\x1b[?1049h\x1b[?1;2004l\x1b[4h\x1b[4l",
		"\x1b7\x1b8\x1bM\x1b=\x1b>\x1b(B\x1b(0\x1b)A", "\x1b[5;10r\x1b[2 q\x1b[!p\x1b[2T\x1b[s\x1b[u\x1b[?J",
	} {
		for n := 1; n < 12; n++ {
			if got := passed(t, same, n); got != same {
				t.Errorf("%q becomes %q", same, got)
			}
		}
	}
	for name, seq := range map[string]string{
		"clipboard": "\x1b]52;c;aGk=\x07", "reading the clipboard": "\x1b]52;c;?\x1b\\", "title": "\x1b]0;title\x07", "title, other end": "\x1b]2;title\x1b\\", "icon": "\x1b]1;x\x07",
		"title with controls": "\x1b]2;a\tb\rc\x07", "palette": "\x1b]4;1;?\x07", "colours": "\x1b]10;?\x1b\\", "link": "\x1b]8;;http://x\x07", "title with \u009c": "\x1b]2;\u00dc\x07",
		"attributes": "\x1b[c", "secondary attributes": "\x1b[>0c", "tertiary attributes": "\x1b[=c", "status": "\x1b[5n", "cursor": "\x1b[6n", "cursor, private": "\x1b[?6n",
		"parameters": "\x1b[x", "identification": "\x1bZ", "answerback": "\x05", "title's report": "\x1b[21t", "size": "\x1b[18t", "mode": "\x1b[?2026$p", "version": "\x1b[>q", "checksum": "\x1b[1;1;1;1;2;2*y",
		"presentation": "\x1b[1$w", "keys": "\x1b[?u", "other keys": "\x1b[>4;2m", "graphics": "\x1b[?1;1;0S", "settings": "\x1bP$q m\x1b\\", "termcap": "\x1bP+q544e\x1b\\", "keys that are defined": "\x1bP0;1|17/6c73\x1b\\",
		"through tmux": "\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\", "through screen": "\x1bP\x1b]0;x\x07\x1b\\", "image": "\x1b_Ga=q,i=1;AAAA\x1b\\", "message": "\x1b^x\x1b\\", "start of string": "\x1bXx\x1b\\",
		"reset": "\x1bc", "other set of characters": "\x1b%@", "eight bits": "\x1b G", "locked keyboard": "\x1b[2h", "mouse": "\x1b[?1000h", "mouse among others": "\x1b[?25;1003h", "focus": "\x1b[?1004h", "printer": "\x1b[5i",
		"mouse, old": "\x1b[1;2;3;4;5T", "saved modes": "\x1b[?1s", "string that is abandoned": "\x1b]0;x\x18", "empty mode": "\x1b[?h", "status after an escape": "\x1b\x1b[6n", "too long": "\x1b[" + strings.Repeat("1;", 100) + "m",
		"alignment": "\x1b#8", "selected": "\x1b(%5", "prefix inside": "\x1b[1?25h",
	} {
		for n := 1; n <= len(seq)+2; n++ {
			if got := passed(t, "a"+seq+"z", n); got != "az" && name != "through tmux" && name != "through screen" {
				t.Errorf("%s, in pieces of %d: %q", name, n, got)
			} else if strings.ContainsAny(got, "\x1b\u009b") {
				t.Errorf("%s, in pieces of %d: %q", name, n, got)
			}
		}
	}
	// Whatever interrupts a sequence, what is left of it is text.
	for text, want := range map[string]string{
		"\x1b[6\nn": "\nn", "\x1b[6\x1b[6n": "", "\x1b[6\u00e4n": "\u00e4n", "\u009b6n": "6n", "\x9b6n": "\ufffd6n", "latin \xe4\xf6\xfc.": "latin \ufffd\ufffd\ufffd.", "\u009d0;x\x07": "0;x\x07", "\xc2\x1b[6n\x9b6n": "\ufffd\ufffd6n",
		"\xe0\x82\x9b6n": "\ufffd\ufffd\ufffd6n", "\xc0\x9b6n": "\ufffd\ufffd6n", "\x1b]0;never ended\nnext": "\nnext", "\x1b]0;x\x1b[31my": "\x1b[31my", "\x1b[31": "", "\x1b": "", "\xf0\x9f\x98": "", "\x1b\x9b6n": "\ufffd6n", "\x1b(\x07B": "\x07B",
	} {
		for n := 1; n <= len(text)+1; n++ {
			if got := passed(t, text, n); got != want {
				t.Errorf("%q, in pieces of %d: %q, want %q", text, n, got, want)
			}
		}
	}
}

// FuzzFilter: wherever the writes are cut the same is passed on, what is passed on
// passes, and it is made of whole sequences that are shown.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"\x1b[31mred\x1b[0m", "\x1b]52;c;aGk=\x07", "\x1bPtmux;\x1b\x1b]0;x\x07\x1b\\", "\u009b6n\xc2\x1b[6n\x9b", "\x1b[?25;1000h\xe0\x82\x9b", "\x05\x1bZ\x1b(B\x1b%@"} {
		f.Add([]byte(s), uint8(1), uint8(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, first, second uint8) {
		whole := passed(t, string(text), len(text)+1)
		var b bytes.Buffer
		d := New(&b)
		for rest, n := text, int(first); len(rest) > 0; n = int(second) {
			n = min(n+1, len(rest))
			d.Write(rest[:n])
			rest = rest[n:]
		}
		if b.String() != whole {
			t.Fatalf("%q becomes %q in one piece, %q in several", text, whole, b.String())
		}
		if again := passed(t, whole, len(whole)+1); again != whole {
			t.Fatalf("%q becomes %q, and that %q", text, whole, again)
		}
		for i := 0; i < len(whole); {
			r, n := utf8.DecodeRuneInString(whole[i:])
			switch {
			case r == utf8.RuneError && n == 1, r >= 0x80 && r < 0xa0, r == charENQ:
				t.Fatalf("%q becomes %q, which has a control at %d", text, whole, i)
			case r == charESC && (i+1 == len(whole) || strings.IndexByte("[()*+78=>MDEH", whole[i+1]) < 0):
				t.Fatalf("%q becomes %q, which has a sequence at %d", text, whole, i)
			case r == charESC && whole[i+1] == '[':
				end := strings.IndexFunc(whole[i+2:], func(r rune) bool { return r < 0x20 || r > 0x3f })
				if end < 0 || strings.IndexByte("cnxtyvwi|zZRP", whole[i+2+end]) >= 0 && whole[i+2+end] != 'Z' && whole[i+2+end] != 'P' {
					t.Fatalf("%q becomes %q, to which a terminal answers", text, whole)
				}
			}
			i += n
		}
	})
}

func BenchmarkDisplay(b *testing.B) {
	text := []byte(strings.Repeat("\x1b[33mcommit 1234567890\x1b[m\r\nAuthor: somebody <a@example.com>\r\n\r\n    the subject\r\n", 300))
	d := New(io.Discard)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		d.Write(text)
	}
}
