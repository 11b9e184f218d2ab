package main

import (
	"slices"
	"strings"
)

// maxAliases bounds how many aliases stand for one another.
const maxAliases = 10

// expand writes out an alias of the repository, so that what runs is judged as
// if it had been typed, and git never looks the alias up. Flags before the
// subcommand are those of global.
func (r *request) expand(globals, line []string) ([]string, []string, error) {
	var seen []string
	for {
		name := line[0]
		if r.lists || r.guards.off(checkGrammar) || commands[name] != nil {
			return globals, line, nil
		}
		value, ok := r.repo.get("alias." + strings.ToLower(name))
		if !ok {
			return nil, nil, r.unknown(name)
		}
		if slices.Contains(seen, name) || len(seen) == maxAliases {
			return nil, nil, refusal("alias", name, "the aliases "+strings.Join(append(seen, name), ", ")+" stand for one another", "write the subcommand out")
		}
		seen = append(seen, name)
		r.alias = name
		if strings.HasPrefix(strings.TrimLeft(value, " \t\n"), "!") {
			return nil, nil, refusal("alias", name, "git "+quote(name)+" is an alias of this repository that runs a program: "+quote(value), "write out what it is for, as calls of git and of other tools")
		}
		words, why := splitAlias(value)
		if why != "" {
			return nil, nil, refusal("alias", name, "the alias "+quote(name)+" cannot be read: "+why, "write it out")
		}
		moved := r.moved
		r.moved = false
		more, rest, err := r.global(words)
		if err != nil {
			return nil, nil, err
		}
		if r.moved {
			return nil, nil, refusal("alias", name, "the alias "+quote(name)+" leads to another folder, which git does not let an alias do", "write it out")
		}
		r.moved = moved
		globals, line = append(globals, more...), append(rest, line[1:]...)
	}
}

// splitAlias splits an alias into words as split_cmdline does in git's
// alias.c.
func splitAlias(s string) (words []string, why string) {
	var word strings.Builder
	var quoted byte
	some := false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quoted == 0 && strings.IndexByte(" \t\n\r\v\f", c) >= 0:
			if some {
				words = append(words, word.String())
			}
			word.Reset()
			some = false
			continue
		case quoted == 0 && (c == '\'' || c == '"'):
			quoted = c
		case c == quoted && quoted != 0:
			quoted = 0
		case c == '\\' && quoted != '\'':
			if i++; i == len(s) {
				return nil, "it ends with \\"
			}
			word.WriteByte(s[i])
		default:
			word.WriteByte(c)
		}
		some = true
	}
	if quoted != 0 {
		return nil, "a quote is not closed"
	}
	if some {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, "it is empty"
	}
	return words, ""
}

// similar are the words that somebody may have meant by the one that is not
// known, the nearest first, at most three.
func similar(word string, known []string) []string {
	most := 1 + len(word)/4
	var out []string
	for d := 0; d <= most && len(out) < 3; d++ {
		for _, k := range known {
			if len(out) < 3 && !slices.Contains(out, k) && distance(word, k, most) == d {
				out = append(out, k)
			}
		}
	}
	return out
}

// distance is how many letters are to be put in, left out, replaced or swapped
// with the next to make b of a; more than most where that is far.
func distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most || len(a) > 64 || len(b) > 64 {
		return most + 1
	}
	var rows [3][66]int
	for j := range len(b) + 1 {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		now, last, before := &rows[i%3], &rows[(i+2)%3], &rows[(i+1)%3]
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(now[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}

// meant is the advice for a word that is not known: those that are near it, or
// otherwise.
func meant(word string, known []string, otherwise string) string {
	if near := similar(word, known); len(near) > 0 {
		return "did you mean " + strings.Join(near, ", or ") + "?"
	}
	return otherwise
}
