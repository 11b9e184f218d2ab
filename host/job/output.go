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
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/toold/toold/host/regular"
)

// Spec describes the call of a job.
type Spec struct {
	ID      string // of its execution
	Owner   string // the identity, as sessions know it
	Session string
	Bound   bool // by a caller bound to Session; see Job.shares
	Tool    string
	Detach  bool // whether it outlives its session
	// Persist means that its session has a journal: its output is kept across a restart.
	Persist bool
}

// tail keeps the end of what is written to it.
type tail struct {
	b     []byte
	total int64
}

func (t *tail) write(p []byte) {
	t.total += int64(len(p))
	if len(p) > maxOutput {
		p = p[len(p)-maxOutput:]
	}
	t.b = append(t.b, p...)
	if len(t.b) > 2*maxOutput {
		t.b = append(t.b[:0], t.b[len(t.b)-maxOutput:]...)
	}
}

// bytes returns the end of what was written.
func (t *tail) bytes() []byte { return t.b[max(len(t.b)-maxOutput, 0):] }

// outputs are the files with the outputs of finished jobs, one for each job: a line of JSON, the ends of standard
// output and standard error, and a checksum of all of that. A file is written under another name and renamed, so that
// a daemon that is killed leaves a complete file or none. It is removed with its job, or with its session.
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
	// Stdout and Stderr are how many bytes of each follow; the totals are how many were written.
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
	// maxOutput is how many bytes at the end of each of a job's outputs are
	// kept.
	maxOutput = 256 << 10
	// maxOutputFile bounds a file, in bytes, including a module's result.
	maxOutputFile = 4*maxOutput + 64<<10
	// newOutput ends the name of an incomplete file.
	newOutput = ".new"
)

// The reasons for a missing output.
const (
	noteLost    = "the output was not kept when the daemon ended"
	noteDamaged = "the file with the output is damaged"
	noteRemoved = "the output was removed, since newer jobs needed its room"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// outputName matches the names of output files, finished or not, by session.
var outputName = regexp.MustCompile(`^([a-z2-7]+)\.[0-9a-f]{32}(\.new)?$`)

// path returns the file of the output of j.
func (o *outputs) path(j *Spec) string {
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

// errNoOutput is the error for a file that is not the output of a job.
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

// read reads the output of j, and of no other job.
func (o *outputs) read(j *Spec) (h outputHeader, stdout, stderr []byte, err error) {
	f, err := regular.OpenFile(o.path(j), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return h, nil, nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() > maxOutputFile {
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

// writeOutput creates the file completely, or not at all.
func writeOutput(path string, b []byte) error {
	tmp := path + newOutput
	f, err := regular.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
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
