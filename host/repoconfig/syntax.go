package repoconfig

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// parseGitConfig reads git's configuration syntax as git_parse_source in
// git's config.c does, and calls emit for each variable in order, with the
// key as "git config --list" prints it. It refuses what git refuses, and a
// file with NUL bytes or keys that are not UTF-8, which cannot be passed on
// as they are.
func parseGitConfig(b []byte, emit func(key, value string, hasValue bool) error) error {
	s := &configScanner{b: b, line: 1}
	if strings.IndexByte(string(b), 0) >= 0 {
		return errors.New("holds a NUL byte")
	}
	if rest, ok := strings.CutPrefix(string(b), "\uFEFF"); ok {
		s.b = []byte(rest)
	}
	section := ""
	for {
		c := s.next()
		switch {
		case c == '\n':
			if s.eof {
				return nil
			}
		case isConfigSpace(c):
		case c == '#' || c == ';':
			for c != '\n' {
				c = s.next()
			}
			if s.eof {
				return nil
			}
		case c == '[':
			name, ok := s.section()
			if !ok || !utf8.ValidString(name) {
				return s.fault("section")
			}
			section = name + "."
		case isConfigAlpha(c):
			key := []byte(section)
			for ; isConfigKeyChar(c); c = s.next() {
				key = append(key, lower(c))
			}
			for c == ' ' || c == '\t' {
				c = s.next()
			}
			value, hasValue := "", false
			if c != '\n' {
				if c != '=' {
					return s.fault("name")
				}
				if value, hasValue = s.value(); !hasValue {
					return s.fault("value")
				}
			}
			if err := emit(string(key), value, hasValue); err != nil {
				return err
			}
			if s.eof {
				return nil
			}
		default:
			return s.fault("line")
		}
	}
}

type configScanner struct {
	b    []byte
	pos  int
	line int
	eof  bool
}

func (s *configScanner) fault(what string) error {
	return fmt.Errorf("bad %s in line %d", what, s.line)
}

// next returns the next byte, "\r\n" as "\n", and "\n" with eof at the end.
func (s *configScanner) next() byte {
	if s.pos >= len(s.b) {
		s.eof = true
		return '\n'
	}
	c := s.b[s.pos]
	s.pos++
	if c == '\r' && s.pos < len(s.b) && s.b[s.pos] == '\n' {
		c = '\n'
		s.pos++
	}
	if c == '\n' {
		s.line++
	}
	return c
}

// section reads what follows "[": [name], [name.sub] or [name "sub"].
func (s *configScanner) section() (string, bool) {
	var name []byte
	for {
		c := s.next()
		switch {
		case s.eof:
			return "", false
		case c == ']':
			return string(name), len(name) > 0
		case isConfigSpace(c):
			return s.subsection(name, c)
		case !isConfigKeyChar(c) && c != '.':
			return "", false
		}
		name = append(name, lower(c))
	}
}

func (s *configScanner) subsection(name []byte, c byte) (string, bool) {
	for isConfigSpace(c) {
		if c == '\n' {
			return "", false
		}
		c = s.next()
	}
	if c != '"' {
		return "", false
	}
	name = append(name, '.')
	for {
		c := s.next()
		if c == '"' {
			break
		}
		if c == '\\' {
			c = s.next()
		}
		if c == '\n' {
			return "", false
		}
		name = append(name, c)
	}
	return string(name), s.next() == ']'
}

func (s *configScanner) value() (string, bool) {
	var v []byte
	quote, spaces := false, 0
	for {
		c := s.next()
		switch {
		case c == '\n':
			return string(v), !quote
		case isConfigSpace(c) && !quote:
			if len(v) > 0 {
				spaces++
			}
			continue
		case !quote && (c == ';' || c == '#'):
			for c != '\n' {
				c = s.next()
			}
			return string(v), true
		}
		for ; spaces > 0; spaces-- {
			v = append(v, ' ')
		}
		switch c {
		case '"':
			quote = !quote
		case '\\':
			switch c := s.next(); c {
			case '\n':
			case 't':
				v = append(v, '\t')
			case 'b':
				v = append(v, '\b')
			case 'n':
				v = append(v, '\n')
			case '\\', '"':
				v = append(v, c)
			default:
				return "", false
			}
		default:
			v = append(v, c)
		}
	}
}

// Character classes as git has them, independent of the locale.

func isConfigSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isConfigAlpha(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

func isConfigKeyChar(c byte) bool { return isConfigAlpha(c) || '0' <= c && c <= '9' || c == '-' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
