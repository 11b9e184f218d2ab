package arguments

import (
	"errors"
	"fmt"
	"strings"
)

// SplitWords splits a command line into words like a POSIX shell, without
// expansions: single quotes quote everything; double quotes everything except a
// backslash before one of $ ` " \ and a line break; elsewhere a backslash quotes
// the next character. Unquoted shell operators, such as a pipe, are refused:
// passing them as arguments would not do what was meant. $ and * are literal.
func SplitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	in := false // a word has begun, if only with ""
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\n', '\r':
			if c == '\n' && strings.TrimSpace(line[i:]) != "" && (in || len(words) > 0) {
				return nil, errors.New("has a second line; a turn is one command")
			}
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return nil, fmt.Errorf("the quote ' at byte %d is not closed", i)
			}
			word.WriteString(line[i+1 : i+1+end])
			i += 1 + end
			in = true
		case '"':
			start := i
			for i++; ; i++ {
				if i >= len(line) {
					return nil, fmt.Errorf("the quote \" at byte %d is not closed", start)
				}
				if line[i] == '"' {
					break
				}
				if line[i] == '\\' && i+1 < len(line) && strings.IndexByte("$`\"\\\n", line[i+1]) >= 0 {
					if i++; line[i] == '\n' {
						continue
					}
				}
				word.WriteByte(line[i])
			}
			in = true
		case '\\':
			if i++; i >= len(line) {
				return nil, errors.New("ends in a backslash")
			}
			if line[i] != '\n' { // which joins two lines
				word.WriteByte(line[i])
				in = true
			}
		case '|', '&', ';', '<', '>', '(', ')':
			return nil, fmt.Errorf("%q at byte %d would need a shell, and a turn is one command; quote it to pass it to the tool", c, i)
		case '#':
			if !in {
				return nil, fmt.Errorf("'#' at byte %d would begin a comment; quote it to pass it to the tool", i)
			}
			fallthrough
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}
