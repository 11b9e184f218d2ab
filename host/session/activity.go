package session

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/toold/toold/host/journal"
)

// The parts of an execution that journals record.
type (
	Outcome    = journal.Outcome
	HTTP       = journal.HTTP
	Program    = journal.Program
	Connection = journal.Connection
	Found      = journal.Found
	Counters   = journal.Counters
)

// activity is what an execution has done so far.
type activity struct {
	bytesIn  atomic.Int64
	bytesOut atomic.Int64
	fuel     atomic.Int64

	mu sync.Mutex // guards what follows
	// programs are those of AddProgram.
	programs []Program
	// connections are those of AddConnection.
	connections []Connection
	http        HTTP
	line        []byte // the last output line, at most maxLastLine bytes
	found       *Found // of KindReconcile
}

// sum returns what is recorded of an execution that has ended.
func (a *activity) sum() Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Outcome{
		BytesIn: a.bytesIn.Load(), BytesOut: a.bytesOut.Load(), Fuel: a.fuel.Load(),
		Programs: slices.Clone(a.programs), Connections: slices.Clone(a.connections), HTTP: a.http,
	}
}

// AddInput counts input bytes, from the request or its stream.
func (a *activity) AddInput(n int) { a.bytesIn.Add(int64(n)) }

// addOutput counts bytes of output, and keeps the last line.
func (a *activity) addOutput(p []byte) {
	a.bytesOut.Add(int64(len(p)))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line = lastLine(a.line, p)
}

func (a *activity) addHTTP(h HTTP) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.http.Add(h)
}

// maxPrograms bounds the programs of one execution, its connections, and its requests
// on connections, each. maxProgramPath bounds each path, in bytes.
const (
	maxPrograms    = 64
	maxProgramPath = 256
)

// Others stands for the entries beyond maxPrograms, which are counted together: as
// the Path of a Program, and as Host and On of a Connection. It cannot be confused
// with a real one, since paths are absolute and hosts have a port.
const Others = "others"

const apart = "why, is kept for the first ones only"

// AddProgram records that the execution executed the program at path, or was refused it.
func (a *activity) AddProgram(path, refused string) {
	p := Program{Path: strings.ToValidUTF8(path[:min(len(path), maxProgramPath)], "\uFFFD"), Refused: refused, Times: 1}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, q := range a.programs {
		if q.Path == p.Path && q.Refused == p.Refused {
			a.programs[i].Times++
			return
		}
	}
	if len(a.programs) < maxPrograms {
		a.programs = append(a.programs, p)
		return
	}
	further := Program{Path: Others, Times: 1}
	if p.Refused != "" {
		further.Refused = apart
	}
	for i := range a.programs[maxPrograms:] {
		if q := &a.programs[maxPrograms+i]; q.Refused == further.Refused {
			q.Times++
			return
		}
	}
	a.programs = append(a.programs, further)
}

// AddConnection records that the execution connected to c, or was refused it, c.Times
// times; 0 means once. Those beyond maxPrograms are counted as Others.
func (a *activity) AddConnection(c Connection) {
	c.Host, c.Times = strings.ToValidUTF8(c.Host[:min(len(c.Host), maxProgramPath)], "\uFFFD"), max(c.Times, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.addLocked(c) {
		return
	}
	// Connections and requests are bounded separately, so that many of one kind do
	// not crowd out the other.
	like := func(k Connection) bool { return (k.On != "") == (c.On != "") && k.Host != Others }
	kept := 0
	for _, k := range a.connections {
		if like(k) {
			kept++
		}
	}
	if kept >= maxPrograms {
		further := Connection{Host: Others, Sent: c.Sent, Received: c.Received, Times: c.Times}
		if c.On != "" {
			further.On = Others
		}
		if c.Refused != "" {
			further.Refused = apart
		}
		if c.Failed != "" {
			further.Failed = apart
		}
		if c = further; a.addLocked(c) {
			return
		}
	}
	a.connections = append(a.connections, c)
}

// addLocked adds c to an equal entry, and reports whether there is one.
func (a *activity) addLocked(c Connection) bool {
	for i := range a.connections {
		if k := &a.connections[i]; k.Host == c.Host && k.On == c.On && k.Rule == c.Rule && k.Refused == c.Refused && k.Failed == c.Failed {
			k.Times += c.Times
			k.Sent += c.Sent
			k.Received += c.Received
			return true
		}
	}
	return false
}

// Conclude records what an execution of KindReconcile found out. Secrets must already be
// masked.
func (a *activity) Conclude(f Found) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.found = &f
}

// conclusion returns what Conclude recorded, or nil.
func (a *activity) conclusion() *Found {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.found
}

// maxLastLine is how much of an execution's last line a snapshot shows, in
// bytes.
const maxLastLine = 200

// lastLine returns the beginning of the last non-empty line after p was written,
// given the last line so far.
func lastLine(line, p []byte) []byte {
	// A complete line stays until the next non-empty one begins.
	text := bytes.TrimRight(p, "\r\n")
	if len(text) == 0 {
		if len(p) > 0 && (len(line) == 0 || line[len(line)-1] != '\n') {
			line = append(line, '\n')
		}
		return line
	}
	if i := bytes.LastIndexAny(text, "\r\n"); i >= 0 {
		line, text = line[:0], text[i+1:]
	} else if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:0]
	}
	line = append(line, text[:min(len(text), max(maxLastLine-len(line), 0))]...)
	if len(text) < len(p) && bytes.ContainsAny(p[len(p)-1:], "\r\n") {
		line = append(line, '\n')
	}
	return line
}

// lastLineText returns the last line as valid UTF-8.
func (a *activity) lastLineText() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := bytes.TrimRight(a.line, "\n")
	for len(line) > 0 && !utf8.Valid(line) { // cut within a character
		r, n := utf8.DecodeLastRune(line)
		if r != utf8.RuneError || n > 1 {
			break
		}
		line = line[:len(line)-1]
	}
	return string(bytes.ToValidUTF8(line, []byte("\uFFFD")))
}
