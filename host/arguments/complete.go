package arguments

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxOffers limits the number of words in a completion, maxAbout the bytes of each word's description.
const (
	maxOffers = 512
	maxAbout  = 120
)

// Complete returns the possible completions of a command line of t. words are the words after the tool's name, the
// last one as typed so far. Completions are flags, and the values that the schema lists: one per line, the word, a
// tab, and its description.
func Complete(t Tool, words []string) (string, error) {
	c, err := newCommand(t.Name, t.Description, t.Schema)
	if err != nil || len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return !utf8.ValidString(w) }) {
		return "", err
	}
	return c.offers(words), nil
}

// offers writes the candidates for the last of words. There are none for a value that the schema does not restrict.
func (c *command) offers(words []string) string {
	typed, before := words[len(words)-1], words[:len(words)-1]
	var out []string
	offer := func(word, about string) {
		// A shell would not treat some of these as a plain word.
		if len(out) < maxOffers && strings.HasPrefix(word, typed) && !strings.ContainsAny(word, "\t\n\r\x00\x1b") {
			if about = clean(about, maxAbout); about != "" {
				word += "\t" + about
			}
			out = append(out, word)
		}
	}
	switch name, _, bound := strings.Cut(typed, "="); {
	case slices.Contains(before, "--"):
	case bound && strings.HasPrefix(typed, "-"):
		if f, err := c.resolve(typed); err == nil && f.what == assign {
			c.valuesOf(last(f.path), name+"=", offer)
		}
	case bound:
		if path, err := c.listed(name, name); err == nil && path != nil {
			c.valuesOf(last(path), name+"=", offer)
		}
	case c.expected(before) != nil:
		c.valuesOf(c.expected(before), "", offer)
	case strings.HasPrefix(typed, "-"):
		for _, r := range c.rows(c.top, nil, nil) {
			if word, _, _ := strings.Cut(r.flag, " "); strings.HasPrefix(word, "-") {
				word = strings.TrimSuffix(word, "...")
				offer(word, r.text)
				if of, ok := strings.CutPrefix(word, "--"); ok && r.schema.only(boolean) && strings.HasPrefix(typed, "--no-") {
					offer("--no-"+of, r.text)
				}
			}
		}
		if f, _ := c.top.find("json"); f == nil {
			offer("--json", "the whole payload, without other flags")
		}
		for _, flag := range c.asksHelp() {
			offer(flag, "the flags")
		}
	}
	if len(out) == 0 {
		return ""
	}
	return strings.Join(out, "\n") + "\n"
}

// expected returns the schema of the value that the flag at the end of words expects, or nil if it expects none.
func (c *command) expected(words []string) *schema {
	if len(words) == 0 || !strings.HasPrefix(words[len(words)-1], "-") {
		return nil
	}
	f, err := c.resolve(words[len(words)-1])
	if err != nil || f.what != assign || f.bound || last(f.path).only(boolean) {
		return nil
	}
	return last(f.path)
}

// valuesOf offers the values that s lists, with the prefix before.
func (c *command) valuesOf(s *schema, before string, offer func(word, about string)) {
	if s.takes(array) && s.items != nil && s.enum == nil {
		s = c.schema(s.items)
	}
	switch {
	case s.enum != nil:
		for _, v := range s.enum.list {
			word := string(v.text)
			if kindOf(v.text) == text && json.Unmarshal(v.text, &word) != nil {
				continue
			}
			offer(before+word, "")
		}
	case s.kinds != anything && s.kinds&boolean != 0:
		offer(before+"true", "")
		offer(before+"false", "")
	}
}
