package session

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/fault"
)

// journalVersion is the version of the format that this program writes. It
// reads all versions up to it, and of later ones what it understands.
//
//   - 1: a record is a line of JSON.
//   - 2: each record ends in "crc", the CRC-32C of the line as it would be
//     without it, so that damage which leaves JSON behind is seen.
const journalVersion = 2

const (
	// maxJournal is the size in bytes at which a journal is begun anew; the one
	// before it is kept, so a session has at most about twice as much on disk.
	maxJournal = 256 << 10
	// maxLine bounds a line that is read. What is longer is damaged.
	maxLine = 64 << 10
)

// The types of records.
const (
	recSession  = "session"  // the header: what the session is
	recSet      = "set"      // its name, labels and tools from now on
	recState    = "state"    // its state from now on
	recBegin    = "begin"    // an execution is about to run
	recEnd      = "end"      // and this is what came of it
	recRefused  = "refused"  // a call that did not run
	recSnapshot = "snapshot" // what the records before this one came to
)

// record is one line of a journal. Each type uses some of the fields. There is
// no argument, input or variable in it: secrets are in those.
type record struct {
	Type string    `json:"t"`
	At   time.Time `json:"at"`

	// Of a header.
	Version int       `json:"version,omitempty"`
	ID      string    `json:"id,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Default bool      `json:"default,omitempty"`
	Parent  string    `json:"parent,omitempty"`
	Cwd     string    `json:"cwd,omitempty"`
	Created time.Time `json:"created,omitzero"`
	// Key and Digest are of the idempotency key that the session was made with.
	Key    string `json:"key,omitempty"`
	Digest string `json:"digest,omitempty"`

	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Tools  *[]string         `json:"tools,omitempty"`

	State string `json:"state,omitempty"`

	// Of an execution.
	Execution   string     `json:"execution,omitempty"`
	Tool        string     `json:"tool,omitempty"`
	Kind        string     `json:"kind,omitempty"`
	Job         bool       `json:"job,omitempty"`
	Detach      bool       `json:"detach,omitempty"`
	Mutating    bool       `json:"mutating,omitempty"`
	Status      string     `json:"status,omitempty"`
	Code        fault.Code `json:"code,omitempty"`
	ExitCode    int        `json:"exit_code,omitempty"`
	Attempts    int        `json:"attempts,omitempty"`
	DurationMS  int64      `json:"duration_ms,omitempty"`
	BytesIn     int64      `json:"bytes_in,omitempty"`
	BytesOut    int64      `json:"bytes_out,omitempty"`
	Fuel        int64      `json:"fuel,omitempty"`
	Undelivered int        `json:"undelivered,omitempty"`
	Programs    []Program  `json:"programs,omitempty"`

	Counters *Counters `json:"counters,omitempty"`
	Pending  []record  `json:"pending,omitempty"`
	// Lost counts records before this one that could not be written.
	Lost int `json:"lost,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	sumBegin = `,"crc":"`
	sumEnd   = `"}`
	sumSize  = len(sumBegin) + 8 + len(sumEnd)
)

// encode is r as a line.
func (r *record) encode() []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // nothing in a record can fail
	}
	sum := crc32.Checksum(line, castagnoli)
	line = append(line[:len(line)-1], sumBegin...)
	line = fmt.Appendf(line, "%08x", sum)
	return append(line, sumEnd+"\n"...)
}

// intact takes the checksum off a line; false when it is not that of the line. A
// line of version 1 has none.
func intact(line []byte, version int) ([]byte, bool) {
	at := len(line) - sumSize
	if at < 0 || string(line[at:at+len(sumBegin)]) != sumBegin {
		return line, version == 1
	}
	bare := append(line[:at:at], '}')
	return bare, fmt.Sprintf("%08x", crc32.Checksum(bare, castagnoli)) == string(line[at+len(sumBegin):at+len(sumBegin)+8])
}

// journal writes one session's file. It holds the file open while something runs
// in the session, and for a while after; but no more than maxKept idle ones cost
// a descriptor.
type journal struct {
	path string
	kept *atomic.Int32 // journals, of all sessions, that are open without need

	// What snapshots say; read without mu, which a slow disk can hold for long.
	records atomic.Int64
	skipped atomic.Int64          // what loading passed over
	lost    atomic.Int64          // records that could not be written since the last that was
	err     atomic.Pointer[error] // why, or nil

	mu   sync.Mutex // guards what follows; taken before Session.mu, never after it
	file *os.File
	size int64
	held bool // it is one of kept
	old  bool // the file is of an older version: the next record begins it anew
	gone bool // it was removed: what still comes is written nowhere
}

// append writes the record that what answers, or, when that is nil, only sees to
// it that the file is there. A file that has grown too long, or is not there, is
// begun with what fresh answers. what is called once, whether or not it can be
// written, and after fresh: what it changes belongs to its record, and to no
// record before it.
// first reports that the record before this one could be written.
func (j *journal) append(what func() *record, fresh func() []record) (first bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone {
		what()
		return false, nil
	}
	first = j.lost.Load() == 0
	err = j.openLocked(fresh)
	if err == nil && (j.size > maxJournal || j.old) {
		if err = j.rotateLocked(fresh()); err == nil {
			j.old = false
		}
	}
	r := what()
	if err == nil && r != nil {
		r.Lost = int(j.lost.Load())
		err = j.writeLocked(r.encode())
	}
	switch {
	case err != nil:
		return first, j.failLocked(err)
	case r == nil:
		return first, nil
	}
	j.records.Add(1)
	j.lost.Store(0)
	j.err.Store(nil)
	return first, nil
}

func (j *journal) failLocked(err error) error {
	j.lost.Add(1)
	j.err.Store(&err)
	j.closeLocked()
	return err
}

// writeLocked writes a whole line, or takes away what it could write of it.
func (j *journal) writeLocked(line []byte) error {
	n, err := j.file.Write(line)
	if err != nil {
		if n > 0 {
			j.file.Truncate(j.size) // what remains of the line is torn, and read as such
		}
		return err
	}
	j.size += int64(n)
	return nil
}

// openLocked opens the file to append to it. A last line that was torn is ended,
// so that the next one begins on its own.
func (j *journal) openLocked(fresh func() []record) error {
	if j.file != nil {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // so is the folder
		if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
			return err
		}
		f, err = os.OpenFile(j.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	}
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	j.file, j.size = f, fi.Size()
	if j.size == 0 {
		for _, r := range fresh() {
			if err := j.writeLocked(r.encode()); err != nil {
				return err
			}
		}
		return nil
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, j.size-1); err == nil && last[0] != '\n' {
		return j.writeLocked([]byte("\n"))
	}
	return nil
}

// rotateLocked begins the journal anew. There is always a whole one under one of
// the two names.
func (j *journal) rotateLocked(records []record) error {
	tmp := newer(j.path)
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for i := range records {
		b.Write(records[i].encode())
	}
	// On the disk before it has the name: the end of the machine may cost the last
	// records, and not all of them.
	_, err = f.Write(b.Bytes())
	if err := errors.Join(err, f.Sync()); err != nil {
		f.Close()
		os.Remove(tmp)
		return err
	}
	if err := errors.Join(os.Rename(j.path, older(j.path)), os.Rename(tmp, j.path)); err != nil {
		f.Close()
		return err
	}
	j.file.Close()
	j.file, j.size = f, int64(b.Len())
	return nil
}

// older is where a journal's file goes when it is begun anew, newer where the new
// one is written.
func older(path string) string { return path + ".1" }
func newer(path string) string { return path + ".new" }

// flush puts on the disk what was written. Records are not synced one by one: see
// host/RATIONALE.md.
func (j *journal) flush(fresh func() []record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone {
		return nil
	}
	err := j.openLocked(fresh)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return j.failLocked(err)
	}
	return nil
}

// release closes the file until the next record.
func (j *journal) release() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closeLocked()
}

// closeLocked closes the file where it is open.
func (j *journal) closeLocked() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	if j.held {
		j.held = false
		j.kept.Add(-1)
	}
	return err
}

// maxKept is how many files stay open that nothing is written to. Opening one
// costs a short call a tenth of its time.
const maxKept = 128

// rest is release, but the file stays open for the next call where few do.
func (j *journal) rest() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil || j.held {
		return
	}
	if j.kept.Add(1) <= maxKept {
		j.held = true
		return
	}
	j.kept.Add(-1)
	j.closeLocked()
}

// status is what a snapshot says of the journal.
func (j *journal) status() map[string]any {
	m := map[string]any{"records": j.records.Load(), "skipped": j.skipped.Load(), "lost": j.lost.Load(), "error": ""}
	if err := j.err.Load(); err != nil {
		m["error"] = (*err).Error()
	}
	return m
}

// remove takes the files away, for good.
func (j *journal) remove() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closeLocked()
	j.gone = true
	for _, path := range []string{j.path, older(j.path), newer(j.path)} {
		os.Remove(path)
	}
}

// loaded is what a journal says.
type loaded struct {
	header  record
	name    string
	labels  map[string]string
	tools   []string
	state   string
	used    time.Time // when the last record was written
	count   Counters
	pending map[string]record // begun and not ended, by execution
	jobs    []record          // ends of jobs, oldest first
	records int
	skipped int // lines that were torn, damaged or of an unknown type
	lost    int // records that could not be written, as later ones say
}

// errNoHeader is what loading answers for a file that does not say whose it is.
var errNoHeader = errors.New("no line of it says which session it is of")

// read takes in what a journal says. Whatever it does not understand it passes
// over and counts. The error is one of reading, or errNoHeader.
func read(r io.Reader) (*loaded, error) {
	l := &loaded{pending: map[string]record{}}
	var d decoder
	err := eachLine(r, func(line []byte) {
		var rec record
		if !d.decode(line, &rec) || !l.take(&rec) {
			l.skipped++
			return
		}
		l.records++
		l.lost += rec.Lost
		if rec.At.After(l.used) {
			l.used = rec.At
		}
	})
	if err != nil {
		return nil, err
	}
	if l.header.ID == "" {
		return nil, errNoHeader
	}
	return l, nil
}

// decoder reads the lines of one file.
type decoder struct {
	version int // of its header, 0 before there was one
}

// decode reads one line; false when it is damaged. Lines without a checksum count
// in files of version 1 only, and there is no such file that does not say so in
// its first line.
func (d *decoder) decode(line []byte, r *record) bool {
	bare, ok := intact(line, d.version)
	if !ok && d.version == 0 {
		var first record
		if json.Unmarshal(line, &first) == nil && first.Type == recSession && first.Version == 1 {
			d.version, bare, ok = 1, line, true
		}
	}
	if d.version == 0 {
		d.version = journalVersion
	}
	return ok && json.Unmarshal(bare, r) == nil && r.Type != ""
}

// take adds one record to what is known; false when it is of no known type, or
// says too little.
func (l *loaded) take(r *record) bool {
	switch r.Type {
	case recSession:
		if r.ID == "" || r.Owner == "" || r.Version < 1 {
			return false
		}
		if l.header.ID == "" {
			l.header = *r
		}
	case recSet:
		l.name, l.labels, l.tools = r.Name, r.Labels, nil
		if r.Tools != nil {
			l.tools = *r.Tools
		}
	case recState:
		if r.State == "" {
			return false
		}
		if l.header.ID == "" && r.ID != "" && r.Owner != "" {
			l.header = *r // the header was damaged: this says the most of it
			l.header.Type, l.header.State = recSession, ""
		}
		l.state = r.State
		l.count.event(r.State)
	case recBegin:
		l.pending[r.Execution] = *r
	case recEnd, recRefused:
		if r.Job && r.Type == recEnd {
			l.jobs = append(l.jobs, *r)
		}
		delete(l.pending, r.Execution)
		o := r.outcome()
		l.count.add(&o)
	case recSnapshot:
		if r.Counters != nil {
			l.count = *r.Counters
		}
		clear(l.pending)
		for _, p := range r.Pending {
			l.pending[p.Execution] = p
		}
	default:
		return false
	}
	return true
}

func (r *record) outcome() Outcome {
	return Outcome{
		ID: r.Execution, Tool: r.Tool, Kind: r.Kind, Status: r.Status, Code: r.Code, ExitCode: r.ExitCode, Attempts: r.Attempts,
		Started: r.At.Add(-time.Duration(r.DurationMS) * time.Millisecond), Duration: time.Duration(r.DurationMS) * time.Millisecond,
		BytesIn: r.BytesIn, BytesOut: r.BytesOut, Fuel: r.Fuel, Undelivered: r.Undelivered,
		Programs: r.Programs,
	}
}

// eachLine calls f with each line that is not empty, also with a last one that
// was torn. A line over maxLine is given as its beginning, which no record is.
func eachLine(r io.Reader, f func(line []byte)) error {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			f(bytes.TrimSpace(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readFile is read of a file. A rotation that was cut short, between its two
// renames or before the new file was on the disk, is taken back.
func readFile(path string) (*loaded, error) {
	fi, err := os.Lstat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing || err == nil && fi.Size() == 0 {
		if err := os.Rename(older(path), path); err != nil && missing {
			return nil, err
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("read the journal %s: %w", path, err)
	}
	return l, nil
}

// lines is all records of a journal, those before it was begun anew first, as
// they stand, and how many lines are none.
func (j *journal) lines() (list []any, damaged int) {
	for _, path := range []string{older(j.path), j.path} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		var d decoder
		eachLine(f, func(line []byte) {
			var rec record
			var m map[string]any
			if !d.decode(line, &rec) || json.Unmarshal(line, &m) != nil {
				damaged++
				return
			}
			delete(m, "crc")
			list = append(list, m)
		})
		f.Close()
	}
	return list, damaged
}
