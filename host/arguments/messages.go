package arguments

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxListed is how many names or values a message lists.
const maxListed = 12

// undashed returns the name in a flag.
func undashed(flag string) string {
	return strings.TrimPrefix(strings.TrimPrefix(flag, "-"), "-")
}

// dashed returns the flag for a name.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// plain reports whether s looks like a name and can go into a message as it is.
func plain(s string) bool {
	for i, c := range s {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= utf8.RuneSelf && unicode.IsLetter(c)
		if !letter && (i == 0 || c != '-' && c != '.' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= 80
}

// show returns a flag or a name for a message, quoted unless it looks like one.
func show(s string) string {
	if plain(undashed(s)) {
		return s
	}
	return quoted(s)
}

// quoted returns a text for a message in quotes, or its beginning.
func quoted(s string) string {
	return fmt.Sprintf("%q", cut(s, 160))
}

// cut returns the beginning of a text, which may be arbitrarily long.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// list joins texts for a message, only the first ones if there are many.
func list(texts []string, as func(string) string, separator string) string {
	var b strings.Builder
	for i, s := range texts {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(texts)-i)
			break
		}
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(as(s))
	}
	return b.String()
}

// shown returns a value for a message, quoted unless it is clear without quotes.
func shown(s string) string {
	if clean(s, 80) != s || s == "" {
		return quoted(s)
	}
	return s
}

// clean returns the first most bytes of a text as one line, without terminal control characters.
func clean(s string, most int) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	s = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
