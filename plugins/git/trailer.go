package main

import (
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// both runs one check after the other.
func both(a, b func(*request) error) func(*request) error {
	return func(r *request) error {
		if err := a(r); err != nil {
			return err
		}
		return b(r)
	}
}

// trailers writes each --trailer into the message. Git would hand them to git
// interpret-trailers, which runs a program for every trailer.*.cmd that the
// repository configures by then, whatever its name.
func trailers(r *request) error {
	var lines []string
	var items []argv.Item
	last := -1
	for _, it := range r.line.Items {
		switch {
		case it.Flag != nil && it.Name == "--trailer":
			line, err := trailer(it.Value)
			if err != nil {
				return err
			}
			if n := len(lines); n == 0 || lines[n-1] != line {
				lines = append(lines, line)
			}
			continue
		case it.Flag != nil && it.Name == "--message":
			last = len(items)
		}
		items = append(items, it)
	}
	if lines == nil {
		return nil
	}
	const instead = "write the lines at the end of the message, with -m"
	if last < 0 {
		return refusal("flag.value", "--trailer", `flag "--trailer" needs a message that is given with -m`, instead)
	}
	for _, e := range r.repo.entries {
		if e.section == "trailer" && always[e.pattern()] == "" {
			return refusal("flag.value", "--trailer", "the repository's configuration says with "+quote(e.key)+" what a trailer is to be", instead)
		}
	}
	if r.line.Has("--signoff") {
		r.note("the lines of --trailer stand before Signed-off-by here, and not behind it")
	}
	text := strings.Join(lines, "\n")
	message := strings.TrimRight(items[last].Value, "\n")
	first := true
	for _, it := range items[:last] {
		first = first && it.Name != "--message"
	}
	if endsInTrailers(message, first) {
		items[last].Value = message + "\n" + text
	} else {
		more := items[last]
		more.Value = text
		items = append(items[:last+1], append([]argv.Item{more}, items[last+1:]...)...)
	}
	r.line.Items = items
	return nil
}

// trailer writes KEY=VALUE or KEY:VALUE as git does.
func trailer(v string) (string, error) {
	i := strings.IndexAny(v, ":=")
	if i < 0 {
		i = len(v)
		v += ":"
	}
	key, value := strings.TrimSpace(v[:i]), strings.TrimSpace(v[i+1:])
	if !plainName(key, "") || strings.Contains(key, "_") || strings.ContainsAny(value, "\r\n") {
		return "", refusal("flag.value", "--trailer", "the value "+quote(v)+" is not a trailer", "write KEY: VALUE, in one line")
	}
	return key + ": " + value, nil
}

// endsInTrailers reports whether the last paragraph of a message is one of
// trailers; the first paragraph of all is its title.
func endsInTrailers(message string, first bool) bool {
	i := strings.LastIndex(message, "\n\n")
	if i < 0 && first {
		return false
	}
	for line := range strings.SplitSeq(strings.TrimLeft(message[i+1:], "\n"), "\n") {
		key, _, ok := strings.Cut(line, ": ")
		if !ok || !plainName(key, "") {
			return false
		}
	}
	return true
}
