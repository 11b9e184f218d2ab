package wire

import (
	"strconv"
	"strings"

	"github.com/toold/toold/host/fault"
)

// Size is the number of rows and columns of a terminal; 0 is unknown. It is process.Size, which cannot be named here.
type Size = struct{ Rows, Cols uint16 }

// TTY describes the terminal that a caller offers to its tool.
type TTY struct {
	// Rows and Cols are its size.
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
	// Term and ColorTerm are the caller's variables TERM and COLORTERM.
	Term      string `json:"term"`
	ColorTerm string `json:"colorterm"`
	// Stderr means that standard error is the same terminal.
	Stderr bool `json:"stderr"`
	// Jobs means that the caller handles the frame that its tool was stopped, and continues it.
	Jobs bool `json:"jobs"`
}

// maxTerm is the longest name of a terminal type, in bytes.
const maxTerm = 64

// TermName reports whether s is valid as TERM or COLORTERM: programs look up a file of that name.
func TermName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '+':
		case c == '.' && i > 0:
		default:
			return false
		}
	}
	return len(s) <= maxTerm
}

func (t *TTY) check(stream bool, stdin []byte) error {
	switch {
	case t == nil:
		return nil
	case !stream:
		return refuse("/tty", "is there, but /stream is not true: a terminal is a stream")
	case stdin != nil:
		return refuse("/tty", "is there, and so is the input; a terminal is typed into while the call runs")
	case !TermName(t.Term):
		return refuse("/tty/term", "is not the name of a terminal type, such as xterm-256color")
	case !TermName(t.ColorTerm):
		return refuse("/tty/colorterm", "is not a kind of colours, such as truecolor")
	}
	return nil
}

// UnknownTTY reports whether err is the refusal of a server without terminals, or without jobs on them, of a request
// that offers one. The call did not take place.
func UnknownTTY(err *fault.Error) bool {
	return err != nil && err.Code == fault.InvalidEnvelope &&
		(strings.HasPrefix(err.Message, "/tty:") || strings.HasPrefix(err.Message, "/tty/jobs:"))
}

// Terminal is the caller's terminal, for a call that may become its tool's.
type Terminal struct {
	TTY
	// Open tells the caller that its terminal is the tool's from now on, and requests what is typed there. It must be
	// called before the first call of Streams.Stdin.
	Open func()
	// Sizes are later sizes of the terminal; a newer one replaces one that was not received.
	Sizes <-chan Size
	// Stopped tells the caller that its tool was stopped. It is nil unless Jobs.
	Stopped func()
}

// EncodeTerminal returns the frame of Terminal.Open, as JSON.
func EncodeTerminal() []byte { return []byte(`{"type":"stdin","open":true,"tty":true}`) }

// EncodeStopped returns the frame of Terminal.Stopped, as JSON.
func EncodeStopped() []byte { return []byte(`{"type":"stopped"}`) }

// EncodeResize returns the frame with the size of the terminal, as JSON.
func EncodeResize(s Size) []byte {
	b := append([]byte(`{"type":"resize"`), `,"rows":`...)
	b = strconv.AppendUint(b, uint64(s.Rows), 10)
	b = append(b, `,"cols":`...)
	return append(strconv.AppendUint(b, uint64(s.Cols), 10), '}')
}

func appendTTY(dst []byte, t *TTY) []byte {
	dst = append(dst, `,"tty":{"rows":`...)
	dst = strconv.AppendUint(dst, uint64(t.Rows), 10)
	dst = append(dst, `,"cols":`...)
	dst = strconv.AppendUint(dst, uint64(t.Cols), 10)
	dst = append(dst, `,"term":`...)
	dst = appendString(dst, t.Term)
	dst = append(dst, `,"colorterm":`...)
	dst = appendString(dst, t.ColorTerm)
	dst = append(dst, `,"stderr":`...)
	dst = strconv.AppendBool(dst, t.Stderr)
	dst = append(dst, `,"jobs":`...)
	return append(strconv.AppendBool(dst, t.Jobs), '}')
}
