package component

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// expression is one of a script of the component model's tests: a list, or an atom.
// line is where it begins.
type expression struct {
	list []expression
	atom string // of a string, what it holds
	text bool   // it is a string
	line int
}

func (e *expression) head() string {
	if len(e.list) == 0 || e.list[0].text {
		return ""
	}
	return e.list[0].atom
}

// expressions reads a script.
func expressions(t *testing.T, s string) []expression {
	t.Helper()
	line := 1
	var read func(top bool) []expression
	read = func(top bool) (out []expression) {
		for len(s) > 0 {
			switch c := s[0]; {
			case c == '\n':
				line++
				s = s[1:]
			case c == ' ' || c == '\t' || c == '\r':
				s = s[1:]
			case strings.HasPrefix(s, ";;"):
				_, after, _ := strings.Cut(s, "\n")
				s = "\n" + after
			case strings.HasPrefix(s, "(;"):
				comment, after, _ := strings.Cut(s, ";)")
				line += strings.Count(comment, "\n")
				s = after
			case c == '(':
				at := line
				s = s[1:]
				out = append(out, expression{list: read(false), line: at})
			case c == ')':
				s = s[1:]
				if !top {
					return out
				}
				t.Fatalf("line %d: a parenthesis too many", line)
			case c == '"':
				var b []byte
				at := line
				for s = s[1:]; s[0] != '"'; s = s[1:] {
					if s[0] != '\\' {
						b = append(b, s[0])
						continue
					}
					if n, err := strconv.ParseUint(s[1:3], 16, 8); err == nil {
						b = append(b, byte(n))
						s = s[2:]
					} else if plain, ok := map[byte]byte{'t': '\t', 'n': '\n', 'r': '\r', '"': '"', '\'': '\'', '\\': '\\'}[s[1]]; ok {
						b = append(b, plain)
						s = s[1:]
					} else {
						t.Fatalf("line %d: escape %.3q", line, s)
					}
				}
				s = s[1:]
				out = append(out, expression{atom: string(b), text: true, line: at})
			default:
				n := strings.IndexAny(s, " \t\r\n()\";")
				if n <= 0 {
					t.Fatalf("line %d: %.10q", line, s)
				}
				out = append(out, expression{atom: s[:n], line: line})
				s = s[n:]
			}
		}
		return out
	}
	return read(true)
}

// binary returns the bytes of a component that a script writes as bytes.
func (e *expression) binary() ([]byte, bool) {
	if e.head() != "component" {
		return nil, false
	}
	at := -1
	var b []byte
	for i, x := range e.list {
		if x.atom == "binary" && !x.text {
			at = i
		} else if at >= 0 {
			b = append(b, x.atom...)
		}
	}
	return b, at >= 0
}

// The component model's own tests of the binary format: what is malformed is never
// taken, and what is well-formed is refused by name or not at all. They are in
// .cache/corpus when scripts/corpus was given a copy of their repository.
func TestSpecificationBinary(t *testing.T) {
	file, err := os.ReadFile(filepath.Join("../../../.cache/corpus/component-model/binary/binary.wast"))
	if err != nil {
		t.Skipf("the tests of the component model are not there: %v", err)
	}
	good, bad, unsupported := 0, 0, map[string]int{}
	for _, e := range expressions(t, string(file)) {
		of, malformed := e, false
		switch e.head() {
		case "component":
		case "assert_malformed":
			of, malformed = e.list[1], true
		default:
			continue // assert_invalid: see the package comment
		}
		b, ok := of.binary()
		if !ok {
			continue
		}
		_, err := Read(b)
		ours, refused := errors.AsType[*Error](err)
		switch {
		case malformed && err == nil:
			t.Errorf("line %d: malformed (%s), and read", e.line, e.list[2].atom)
		case malformed: // perhaps for what stands before that, which is not supported
			bad++
		case err != nil && (!refused || !ours.Unsupported):
			t.Errorf("line %d: well-formed, and Read says %v", e.line, err)
		default:
			good++
			if err != nil {
				unsupported[ours.Reason]++
			}
		}
	}
	t.Logf("%d well-formed, %d malformed; refused by name: %v", good, bad, unsupported)
}
