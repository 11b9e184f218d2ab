// Package journal keeps what happens in one session in a file, a line of JSON for
// each record, and reads it back.
//
// It guarantees that a record which was appended without an error is read back
// after the process was killed; that damaged, torn and unknown lines are skipped and
// counted, and change no other record; that a file is rotated at 256 KiB with one
// before it, and one of the two names always has the complete state; and that
// failures to write are counted in the next record that is written.
//
// It does not sync each record: a crash of the machine may lose the last ones, but
// for what Flush was called for. It does not interpret sessions or executions:
// package session, the only caller, decides what is recorded and when, and what
// follows from it.
package journal

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
	"github.com/toold/toold/host/regular"
)

// Version is the format version that this program writes. It reads all
// versions up to it, and of later ones the records whose kind it supports.
//
//   - 1: a record is a line of JSON.
//   - 2: each record ends in "crc", the CRC-32C of the line without it, to detect
//     damage that leaves valid JSON.
const Version = 2

const (
	// maxJournal is the size in bytes at which a journal is rotated. One rotated
	// file is kept, so a session has at most about twice as much on disk.
	maxJournal = 256 << 10
	// maxLine bounds a line; a longer one is damaged.
	maxLine = 64 << 10
)

// The types of records.
const (
	TypeSession  = "session"  // the header: what identifies the session
	TypeSet      = "set"      // its name, labels and tools from now on
	TypeState    = "state"    // its state from now on
	TypeBegin    = "begin"    // an execution is about to run
	TypeEnd      = "end"      // an execution has ended
	TypeRefused  = "refused"  // a call that did not run
	TypeSnapshot = "snapshot" // the sum of all earlier records
)

// Record is one line of a journal. Each type uses some of the fields. It has no
// arguments, input or variables, since those may hold secrets.
type Record struct {
	Type string    `json:"t"`
	At   time.Time `json:"at"`

	// TypeSession and TypeState. Of an execution, Parent is that in which a module
	// asked for it.
	Version int       `json:"version,omitempty"`
	ID      string    `json:"id,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Default bool      `json:"default,omitempty"`
	Parent  string    `json:"parent,omitempty"`
	Cwd     string    `json:"cwd,omitempty"`
	Created time.Time `json:"created,omitzero"`
	// Key and Digest are the idempotency key of the session's create and the
	// digest of that request.
	Key    string `json:"key,omitempty"`
	Digest string `json:"digest,omitempty"`

	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Tools  *[]string         `json:"tools,omitempty"`

	State string `json:"state,omitempty"`

	// TypeBegin, TypeEnd and TypeRefused.
	Execution   string     `json:"execution,omitempty"`
	Tool        string     `json:"tool,omitempty"`
	Kind        string     `json:"kind,omitempty"`
	Job         bool       `json:"job,omitempty"`
	Detach      bool       `json:"detach,omitempty"`
	Bound       bool       `json:"bound,omitempty"`
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
	HTTP        HTTP       `json:"http,omitzero"`
	// Connections are those of a binary.
	Connections []Connection `json:"connections,omitempty"`
	Found       *Found       `json:"found,omitempty"`

	Counters *Counters `json:"counters,omitempty"`
	Pending  []Record  `json:"pending,omitempty"`
	// Lost counts records before this one that could not be written.
	Lost int `json:"lost,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	crcPrefix = `,"crc":"`
	crcSuffix = `"}`
	crcSize   = len(crcPrefix) + 8 + len(crcSuffix)
)

// encode returns r as a line.
func (r *Record) encode() []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // nothing in a record can fail
	}
	sum := crc32.Checksum(line, castagnoli)
	line = append(line[:len(line)-1], crcPrefix...)
	line = fmt.Appendf(line, "%08x", sum)
	return append(line, crcSuffix+"\n"...)
}

// stripChecksum removes the checksum from a line; false if it does not match.
// Lines of version 1 have no checksum.
func stripChecksum(line []byte, version int) ([]byte, bool) {
	at := len(line) - crcSize
	if at < 0 || string(line[at:at+len(crcPrefix)]) != crcPrefix {
		return line, version == 1
	}
	bare := append(line[:at:at], '}')
	return bare, fmt.Sprintf("%08x", crc32.Checksum(bare, castagnoli)) == string(line[at+len(crcPrefix):at+len(crcPrefix)+8])
}

// Journal writes one session's file. The file stays open while something runs in
// the session and for a while after, at most maxOpenIdle of the latter.
type Journal struct {
	// What follows is set before the first record.
	Path     string
	OpenIdle *atomic.Int32 // open journals of idle sessions, in the whole table
	Off      bool          // nothing is written

	counts counts

	mu       sync.Mutex // guards what follows; taken before Session.mu, never after it
	file     *os.File
	size     int64
	idle     bool // counted in openIdle
	outdated bool // the file has an older version: the next record rotates it
	removed  bool // the file was removed: further records are dropped
}

// counts is what snapshots tell. It is read without Journal.mu, which is held during slow
// disk writes.
type counts struct {
	records atomic.Int64
	skipped atomic.Int64          // lines that loading skipped
	lost    atomic.Int64          // failed writes since the last successful one
	err     atomic.Pointer[error] // of the last failed write, or nil
}

// Append writes the record that makeRecord returns; for nil it only creates the file. A
// missing or too large file begins with the records that initial returns. makeRecord
// is called exactly once, even if the write fails, and after initial: the changes that
// it makes belong to its own record only. first reports that the previous write
// succeeded.
func (j *Journal) Append(makeRecord func() *Record, initial func() []Record) (first bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.removed || j.Off {
		makeRecord()
		return false, nil
	}
	first = j.counts.lost.Load() == 0
	err = j.openLocked(initial)
	if err == nil && (j.size > maxJournal || j.outdated) {
		if err = j.rotateLocked(initial()); err == nil {
			j.outdated = false
		}
	}
	r := makeRecord()
	if err == nil && r != nil {
		r.Lost = int(j.counts.lost.Load())
		err = j.writeLocked(r.encode())
	}
	switch {
	case err != nil:
		return first, j.failLocked(err)
	case r == nil:
		return first, nil
	}
	j.counts.records.Add(1)
	j.counts.lost.Store(0)
	j.counts.err.Store(nil)
	return first, nil
}

func (j *Journal) failLocked(err error) error {
	j.counts.lost.Add(1)
	j.counts.err.Store(&err)
	j.closeLocked()
	return err
}

// writeLocked writes a whole line, or truncates a partial one.
func (j *Journal) writeLocked(line []byte) error {
	n, err := j.file.Write(line)
	if err != nil {
		if n > 0 {
			j.file.Truncate(j.size) // if this fails, readers skip the torn line
		}
		return err
	}
	j.size += int64(n)
	return nil
}

// openLocked opens the file for appending. It ends a torn last line, so that the
// next record begins a new one.
func (j *Journal) openLocked(initial func() []Record) error {
	if j.file != nil {
		return nil
	}
	f, err := regular.OpenFile(j.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // the folder is missing
		if err := os.MkdirAll(filepath.Dir(j.Path), 0o700); err != nil {
			return err
		}
		f, err = regular.OpenFile(j.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
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
		for _, r := range initial() {
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

// rotateLocked replaces the file by one with these records. A complete journal
// exists under one of the two names at any time.
func (j *Journal) rotateLocked(records []Record) error {
	tmp := tempPath(j.Path)
	f, err := regular.OpenFile(tmp, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for i := range records {
		b.Write(records[i].encode())
	}
	// Sync before the rename: a crash of the machine may lose the last records,
	// but not all of them.
	_, err = f.Write(b.Bytes())
	if err := errors.Join(err, f.Sync()); err != nil {
		f.Close()
		os.Remove(tmp)
		return err
	}
	if err := errors.Join(os.Rename(j.Path, rotatedPath(j.Path)), os.Rename(tmp, j.Path)); err != nil {
		f.Close()
		return err
	}
	j.file.Close()
	j.file, j.size = f, int64(b.Len())
	return nil
}

// rotatedPath is the name of the previous file after a rotation, tempPath that of
// the new one until it is complete.
func rotatedPath(path string) string { return path + ".1" }
func tempPath(path string) string    { return path + ".new" }

// Flush syncs the file. Records are not synced one by one: see host/RATIONALE.md.
func (j *Journal) Flush(initial func() []Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.removed || j.Off {
		return nil
	}
	err := j.openLocked(initial)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return j.failLocked(err)
	}
	return nil
}

// Release closes the file until the next record.
func (j *Journal) Release() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closeLocked()
}

// closeLocked closes the file if it is open.
func (j *Journal) closeLocked() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	if j.idle {
		j.idle = false
		j.OpenIdle.Add(-1)
	}
	return err
}

// maxOpenIdle is how many files of idle sessions stay open. Opening one costs a
// short call a tenth of its time.
const maxOpenIdle = 128

// ReleaseIdle closes the file unless fewer than maxOpenIdle idle ones are open.
func (j *Journal) ReleaseIdle() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == nil || j.idle {
		return
	}
	if j.OpenIdle.Add(1) <= maxOpenIdle {
		j.idle = true
		return
	}
	j.OpenIdle.Add(-1)
	j.closeLocked()
}

// Status returns the journal's state for snapshots.
func (j *Journal) Status() map[string]any {
	m := map[string]any{"records": j.counts.records.Load(), "skipped": j.counts.skipped.Load(), "lost": j.counts.lost.Load(), "error": ""}
	if err := j.counts.err.Load(); err != nil {
		m["error"] = (*err).Error()
	}
	return m
}

// Remove deletes the files. Later records are dropped.
func (j *Journal) Remove() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closeLocked()
	j.removed = true
	for _, path := range []string{j.Path, rotatedPath(j.Path), tempPath(j.Path)} {
		os.Remove(path)
	}
}

// Loaded makes the journal continue after what l was read from.
func (j *Journal) Loaded(l *State) {
	j.outdated = l.Header.Version != Version && l.Header.Version != 0
	j.counts.records.Store(int64(l.Records))
	j.counts.skipped.Store(int64(l.Skipped))
}

// State is what a journal's records add up to.
type State struct {
	Header  Record
	Name    string
	Labels  map[string]string
	Tools   []string
	State   string
	Used    time.Time // when the last record was written
	Count   Counters
	Pending map[string]Record // begun but not ended, by execution
	Jobs    []Record          // ends of jobs, oldest first
	Records int
	Skipped int // lines that were torn, damaged or of an unknown type
	Lost    int // records that could not be written, as counted in later ones
}

// errNoHeader is the error for a file without a readable id and owner.
var errNoHeader = errors.New("no line identifies the session")

// replay reads a journal. It skips and counts unreadable lines. The error is a
// read error or errNoHeader.
func replay(r io.Reader) (*State, error) {
	l := &State{Pending: map[string]Record{}}
	var d decoder
	err := eachLine(r, func(line []byte) {
		var rec Record
		if !d.decode(line, &rec) || !l.apply(&rec) {
			l.Skipped++
			return
		}
		l.Records++
		l.Lost += rec.Lost
		if rec.At.After(l.Used) {
			l.Used = rec.At
		}
	})
	if err != nil {
		return nil, err
	}
	if l.Header.ID == "" {
		return nil, errNoHeader
	}
	return l, nil
}

// decoder reads the lines of one file.
type decoder struct {
	version int // of its header, 0 before there was one
}

// decode reads one line; false if it is damaged. Lines without a checksum are
// valid only in files whose first line has version 1.
func (d *decoder) decode(line []byte, r *Record) bool {
	bare, ok := stripChecksum(line, d.version)
	if !ok && d.version == 0 {
		var first Record
		if json.Unmarshal(line, &first) == nil && first.Type == TypeSession && first.Version == 1 {
			d.version, bare, ok = 1, line, true
		}
	}
	if d.version == 0 {
		d.version = Version
	}
	return ok && json.Unmarshal(bare, r) == nil && r.Type != ""
}

// apply applies one record; false if its type is unknown or it is incomplete.
func (l *State) apply(r *Record) bool {
	switch r.Type {
	case TypeSession:
		if r.ID == "" || r.Owner == "" || r.Version < 1 {
			return false
		}
		if l.Header.ID == "" {
			l.Header = *r
		}
	case TypeSet:
		l.Name, l.Labels, l.Tools = r.Name, r.Labels, nil
		if r.Tools != nil {
			l.Tools = *r.Tools
		}
	case TypeState:
		if r.State == "" {
			return false
		}
		if l.Header.ID == "" && r.ID != "" && r.Owner != "" {
			l.Header = *r // the header was damaged: TypeState repeats most of it
			l.Header.Type, l.Header.State = TypeSession, ""
		}
		l.State = r.State
		l.Count.CountEvent(r.State)
	case TypeBegin:
		l.Pending[r.Execution] = *r
	case TypeEnd, TypeRefused:
		if r.Job && r.Type == TypeEnd {
			l.Jobs = append(l.Jobs, *r)
		}
		delete(l.Pending, r.Execution)
		o := r.Outcome()
		l.Count.Add(&o)
	case TypeSnapshot:
		if r.Counters != nil {
			l.Count = *r.Counters
		}
		clear(l.Pending)
		for _, p := range r.Pending {
			l.Pending[p.Execution] = p
		}
	default:
		return false
	}
	return true
}

// Outcome returns that of an execution that has ended.
func (r *Record) Outcome() Outcome {
	return Outcome{
		ID: r.Execution, Tool: r.Tool, Kind: r.Kind, Parent: r.Parent, Status: r.Status, Code: r.Code, ExitCode: r.ExitCode, Attempts: r.Attempts,
		Started: r.At.Add(-time.Duration(r.DurationMS) * time.Millisecond), Duration: time.Duration(r.DurationMS) * time.Millisecond,
		BytesIn: r.BytesIn, BytesOut: r.BytesOut, Fuel: r.Fuel, Undelivered: r.Undelivered,
		Programs: r.Programs, Connections: r.Connections, HTTP: r.HTTP,
	}
}

// eachLine calls f with each non-empty line, including a torn last one. Of a line
// over maxLine it passes the beginning, which is not a valid record.
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

// Read replays a file. It reverts a rotation that was interrupted between its
// two renames, or before the new file was on the disk.
func Read(path string) (*State, error) {
	fi, err := os.Lstat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing || err == nil && fi.Size() == 0 {
		if err := os.Rename(rotatedPath(path), path); err != nil && missing {
			return nil, err
		}
	}
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := replay(f)
	if err != nil {
		return nil, fmt.Errorf("read the journal %s: %w", path, err)
	}
	return l, nil
}

// AllRecords returns the records of the rotated and the current file as JSON
// objects, oldest first, and the number of damaged lines.
func (j *Journal) AllRecords() (list []any, damaged int) {
	for _, path := range []string{rotatedPath(j.Path), j.Path} {
		f, err := regular.Open(path)
		if err != nil {
			continue
		}
		var d decoder
		eachLine(f, func(line []byte) {
			var rec Record
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
