package job

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
)

// outputs are the files with the outputs of finished jobs, one for each job: a line
// of JSON, the ends of standard output and standard error, and a checksum of all of
// that. A file is written under another name and renamed, so that a daemon that is
// killed leaves a whole file or none. It goes with its job, or with its session.
type outputs struct {
	dir   string // empty: none are kept
	limit int64  // bytes of the jobs that share a limit, see Job.shares
	log   *slog.Logger
}

// outputHeader is the first line of such a file.
type outputHeader struct {
	Version   int    `json:"v"`
	Owner     string `json:"owner"`
	Session   string `json:"session"`
	Execution string `json:"execution"`
	// Stdout and Stderr are how many bytes of each follow, the totals how many
	// there were.
	Stdout      int             `json:"stdout"`
	Stderr      int             `json:"stderr"`
	StdoutTotal int64           `json:"stdout_total"`
	StderrTotal int64           `json:"stderr_total"`
	Message     string          `json:"message,omitempty"`
	LastLine    string          `json:"last_line,omitempty"`
	Progress    json.RawMessage `json:"progress,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
}

const (
	outputVersion = 1
	// maxOutputFile bounds a file, in bytes. What a module answers is in it, too.
	maxOutputFile = 4*maxOutput + 64<<10
	// newOutput ends the name of a file that is not whole yet.
	newOutput = ".new"
)

// What a job says of an output that is not there.
const (
	noteLost    = "the output was not kept when the daemon ended"
	noteDamaged = "the file with the output is damaged"
	noteRemoved = "the output was removed, since newer jobs needed its room"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// outputName matches the names of output files, finished or not, by session.
var outputName = regexp.MustCompile(`^([a-z2-7]+)\.[0-9a-f]{32}(\.new)?$`)

func (o *outputs) path(j *Job) string {
	sum := sha256.Sum256([]byte(j.Owner + "\x00" + j.ID))
	return filepath.Join(o.dir, j.Session+"."+hex.EncodeToString(sum[:16]))
}

// encode returns the file of a job.
func (h *outputHeader) encode(stdout, stderr []byte) []byte {
	line, err := json.Marshal(h)
	if err != nil {
		panic(err) // cannot fail: strings, numbers and valid JSON
	}
	b := slices.Concat(line, []byte("\n"), stdout, stderr)
	return fmt.Appendf(b, "%08x", crc32.Checksum(b, castagnoli))
}

// errNoOutput is why what a file has is no output of a job.
var errNoOutput = errors.New("it is not whole, or something else")

// decodeOutput reads the file of a job.
func decodeOutput(b []byte) (h outputHeader, stdout, stderr []byte, err error) {
	if len(b) < 8 || fmt.Sprintf("%08x", crc32.Checksum(b[:len(b)-8], castagnoli)) != string(b[len(b)-8:]) {
		return h, nil, nil, errNoOutput
	}
	line, rest, _ := bytes.Cut(b[:len(b)-8], []byte("\n"))
	if err := json.Unmarshal(line, &h); err != nil {
		return h, nil, nil, err
	}
	if h.Version != outputVersion || h.Stdout < 0 || h.Stderr < 0 || h.Stdout > maxOutput || h.Stderr > maxOutput || h.Stdout+h.Stderr != len(rest) ||
		h.StdoutTotal < int64(h.Stdout) || h.StderrTotal < int64(h.Stderr) {
		return h, nil, nil, errNoOutput
	}
	return h, rest[:h.Stdout], rest[h.Stdout:], nil
}

// read reads the output of j, and nobody else's.
func (o *outputs) read(j *Job) (h outputHeader, stdout, stderr []byte, err error) {
	f, err := os.OpenFile(o.path(j), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return h, nil, nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxOutputFile {
		return h, nil, nil, errors.Join(err, errNoOutput)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxOutputFile+1))
	if err != nil {
		return h, nil, nil, err
	}
	if h, stdout, stderr, err = decodeOutput(b); err == nil && (h.Owner != j.Owner || h.Session != j.Session || h.Execution != j.ID) {
		err = errors.New("it is another job's")
	}
	return h, stdout, stderr, err
}

// save writes the output of a job that has ended. Without it, or after it failed, the
// output ends with the daemon.
func (t *Table) save(j *Job) {
	o := &t.outputs
	if o.dir == "" || !j.Persist {
		return
	}
	j.mu.Lock()
	h := outputHeader{
		Version: outputVersion, Owner: j.Owner, Session: j.Session, Execution: j.ID, Message: j.message, LastLine: j.lastLine,
		Stdout: len(j.stdout.bytes()), Stderr: len(j.stderr.bytes()), StdoutTotal: j.stdout.total, StderrTotal: j.stderr.total,
		Progress: j.progress,
	}
	if json.Valid(j.data) {
		h.Data = j.data
	}
	b, listed := h.encode(j.stdout.bytes(), j.stderr.bytes()), j.listed
	j.mu.Unlock()
	if !listed || len(b) > maxOutputFile || !t.reserve(j, int64(len(b))) {
		return
	}
	err := os.MkdirAll(o.dir, 0o700)
	if err == nil {
		err = writeOutput(o.path(j), b)
	}
	if err != nil {
		t.reserve(j, 0)
		o.log.Warn("the output of a job cannot be kept, so it ends with the daemon", "execution_id", j.ID, "session", j.Session, "error", err)
	}
}

// writeOutput makes the file, whole, or none.
func writeOutput(path string, b []byte) error {
	tmp := path + newOutput
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
	}
	return err
}

// reserve notes that the output of j takes so many bytes, and removes older ones that
// share its limit until they fit. It is false, and j has none, where that is over
// the limit on its own.
func (t *Table) reserve(j *Job, size int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	j.saved = 0
	if size > t.outputs.limit {
		return false
	}
	total := size
	for _, other := range t.byOwner[j.Owner] {
		if other.shares(j) {
			total += other.saved
		}
	}
	for _, other := range t.byOwner[j.Owner] { // oldest first
		if total <= t.outputs.limit {
			break
		}
		if other != j && other.shares(j) && other.saved > 0 {
			total -= other.saved
			t.removeOutput(other, noteRemoved)
		}
	}
	j.saved = size
	return true
}

// removeOutput removes the file of j, and says why it is not there. t.mu is held, or
// nobody else has the table yet.
func (t *Table) removeOutput(j *Job, why string) {
	if j.saved == 0 {
		return
	}
	j.saved = 0
	os.Remove(t.outputs.path(j))
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note = why
}

// restoreOutput takes over what the file of a restored job says of it. Its output is
// read when somebody asks for it.
func (t *Table) restoreOutput(j *Job) {
	o := &t.outputs
	j.restored, j.note = true, noteLost
	if o.dir == "" {
		return
	}
	h, stdout, stderr, err := o.read(j)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		j.note = noteDamaged
		o.log.Warn("the output of a job cannot be read; its file is left as it is", "file", o.path(j), "error", err)
		return
	}
	j.note, j.saved = "", int64(len(h.encode(stdout, stderr)))
	j.stdout.total, j.stderr.total, j.lastLine, j.progress, j.data = h.StdoutTotal, h.StderrTotal, h.LastLine, h.Progress, h.Data
	if j.message == "" {
		j.message = h.Message
	}
}

// sweepOutputs removes the files of jobs that are gone. A file that is none of ours is
// left as it is, and so are those of a session that is unread.
func (t *Table) sweepOutputs(unread func(session string) bool) {
	o := &t.outputs
	if o.dir == "" {
		return
	}
	entries, err := os.ReadDir(o.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.log.Warn("the folder of jobs' outputs cannot be read", "folder", o.dir, "error", err)
	}
	known := map[string]bool{}
	for _, jobs := range t.byOwner {
		for _, j := range jobs {
			known[filepath.Base(o.path(j))] = true
		}
	}
	for _, e := range entries {
		name := outputName.FindStringSubmatch(e.Name())
		if name == nil || e.IsDir() {
			o.log.Warn("a file among the outputs of jobs is none; it is left as it is", "file", filepath.Join(o.dir, e.Name()))
			continue
		}
		if known[e.Name()] || name[2] == "" && unread(name[1]) {
			continue
		}
		os.Remove(filepath.Join(o.dir, e.Name()))
	}
}

// RemoveOutputs removes the files of a session that is forgotten.
func (t *Table) RemoveOutputs(owner, session string) {
	if t.outputs.dir == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.byOwner[owner] {
		if j.Session == session {
			t.removeOutput(j, noteRemoved)
		}
	}
}

// outputLocked returns the end of both outputs of j. Where they are not there, note says
// why.
func (j *Job) outputLocked() (stdout, stderr []byte) {
	if !j.restored || j.note != "" {
		return j.stdout.bytes(), j.stderr.bytes()
	}
	_, stdout, stderr, err := j.table.outputs.read(j)
	if err != nil {
		j.note = noteDamaged
		j.table.outputs.log.Warn("the output of a job cannot be read", "file", j.table.outputs.path(j), "error", err)
	}
	return stdout, stderr
}
