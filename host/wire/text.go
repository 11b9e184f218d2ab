package wire

import (
	"math"
	"unicode/utf8"
)

// textSize returns the size of text in a JSON string, without the quotes, or any
// value over most if it is larger than most.
func textSize[T []byte | string](text T, most int) int {
	size := 0
	for i := 0; i < len(text) && size <= most; {
		n, out := encodedSize(text[i:])
		i += n
		size += out
	}
	return size
}

// encodedSize returns the size of the first character of text, and its size in a
// JSON string. An invalid byte becomes U+FFFD.
func encodedSize[T []byte | string](text T) (n, out int) {
	switch c := text[0]; {
	case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
		return 1, 2
	case c < ' ':
		return 1, 6
	case c < utf8.RuneSelf:
		return 1, 1
	}
	r, n := utf8.DecodeRuneInString(string(text[:min(len(text), utf8.UTFMax)]))
	if r == utf8.RuneError && n == 1 {
		return 1, len("\uFFFD")
	}
	return n, n
}

// appendText appends text as the content of a JSON string, as much as fits in room
// bytes, and returns how much of text that was.
func appendText[T []byte | string](dst []byte, text T, room int) ([]byte, int) {
	const hex = "0123456789abcdef"
	for i := 0; i < len(text); {
		n, out := encodedSize(text[i:])
		if room -= out; room < 0 {
			return dst, i
		}
		switch c := text[i]; {
		case out == n:
			dst = append(dst, text[i:i+n]...)
		case c >= utf8.RuneSelf:
			dst = append(dst, "\uFFFD"...)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, '\\', c)
		}
		i += n
	}
	return dst, len(text)
}

// appendCut appends text as a JSON string, as much as fits in room bytes between
// the quotes.
func appendCut[T []byte | string](dst []byte, text T, room int) []byte {
	dst = append(dst, '"')
	dst, _ = appendText(dst, text, room)
	return append(dst, '"')
}

// appendString appends all of s as a JSON string.
func appendString(dst []byte, s string) []byte { return appendCut(dst, s, math.MaxInt) }

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}
