package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Report is what Verify found in an intact log.
type Report struct {
	Segments int    `json:"segments"`
	Records  uint64 `json:"records"`
	// First and Last are the numbers of the first and the last record, From and To
	// their times.
	First uint64    `json:"first,omitempty"`
	Last  uint64    `json:"last,omitempty"`
	From  time.Time `json:"from,omitzero"`
	To    time.Time `json:"to,omitzero"`
	// Hash is the hash of the last record. Kept elsewhere, it later reveals whether anything up to that record was
	// rewritten.
	Hash string `json:"hash,omitempty"`
	// Pruned is how many segments were removed because of their age or the size limit, according to the log.
	Pruned uint64 `json:"pruned,omitempty"`
	// Lost counts records that could not be written, according to the log, or that a crash of the machine lost before
	// they were on disk.
	Lost uint64 `json:"lost,omitempty"`
}

// Damage is the first place where a log is damaged.
type Damage struct {
	// File is the segment, or the head; Offset is where the line begins.
	File   string `json:"file"`
	Offset int64  `json:"offset"`
	// Record is the number that the record there has, or should have; 0 if unknown.
	Record uint64 `json:"record,omitempty"`
	Reason string `json:"reason"`
}

func (b *Damage) Error() string {
	return fmt.Sprintf("%s, byte %d (record %d): %s", b.File, b.Offset, b.Record, b.Reason)
}

// Anchor is a record known from elsewhere.
type Anchor struct {
	N    uint64
	Hash string
}

// settleFirst and settleLast are the first and the last delay, each three times the previous, in waiting for a log
// that is being written to look complete: its last record and its head are written one after the other.
const settleFirst, settleLast = 20 * time.Millisecond, 2 * time.Second

// Verify checks the whole log in dir: each line, each hash, each number, the order of the segments, and that the log
// ends where its head says. With an anchor it also checks that this record exists and is identical. If the log is
// damaged, the error is a *Damage. A log may be verified while it is being written.
func Verify(dir string, anchor *Anchor) (Report, error) {
	var was *head
	for wait := settleFirst; ; wait *= 3 {
		report, err := verify(dir, anchor)
		b, broken := errors.AsType[*growing](err)
		if !broken {
			return report, err
		}
		if b.ahead != nil && was != nil && *b.ahead != *was {
			return report, nil // it grows: what is ahead of the head is still being written to disk
		}
		if was = b.ahead; wait > settleLast {
			return report, b.Damage
		}
		time.Sleep(wait)
	}
}

// growing is a Damage that may be only a record that is being written, or a segment that was removed meanwhile.
type growing struct {
	*Damage
	ahead *head // set if the only fault is that records are ahead of it
}

// verifying is one pass over a log.
type verifying struct {
	dir    string
	report Report
	anchor *Anchor

	segment uint64 // being read
	n       uint64 // the last record
	last    hash
	// begins holds what the oldest segment's first record says precedes it.
	begins struct {
		segment uint64
		prev    string
	}
	pruned *Note // the last such note
	headAt bool  // the record that the head names was found
	head   *head
}

func verify(dir string, anchor *Anchor) (Report, error) {
	v := &verifying{dir: dir, anchor: anchor}
	var err error
	v.head, err = readHead(dir)
	headErr := err
	list, err := segments(dir)
	if err != nil {
		return v.report, fmt.Errorf("read the audit log: %w", err)
	}
	if len(list) == 0 && errors.Is(headErr, fs.ErrNotExist) {
		if anchor != nil {
			return v.report, &Damage{File: dir, Reason: fmt.Sprintf("there is no record %d", anchor.N)}
		}
		return v.report, nil // nothing has been written yet
	}
	if headErr != nil {
		return v.report, &Damage{File: headPath(dir), Reason: "the head cannot be read, so the end of the log is unknown: " + headErr.Error()}
	}
	for i, s := range list {
		if i > 0 && s.number != list[i-1].number+1 {
			return v.report, &growing{Damage: &Damage{File: segmentPath(dir, list[i-1].number+1), Record: v.n + 1, Reason: "the segment is missing"}}
		}
		if err := v.read(s.number, i == len(list)-1); err != nil {
			return v.report, err
		}
	}
	v.report.Segments = len(list)
	return v.report, v.end(list)
}

// broken returns a Damage at one line.
func (v *verifying) broken(at int64, n uint64, format string, a ...any) *Damage {
	return &Damage{File: segmentPath(v.dir, v.segment), Offset: at, Record: n, Reason: fmt.Sprintf(format, a...)}
}

func (v *verifying) read(number uint64, newest bool) error {
	v.segment = number
	f, err := openSegment(v.dir, number)
	if err != nil {
		b := v.broken(0, v.n+1, "the segment cannot be read: %v", err)
		if errors.Is(err, os.ErrNotExist) {
			return &growing{Damage: b}
		}
		return b
	}
	defer f.Close()
	in := newLines(f)
	for first := true; ; first = false {
		line, at, err := in.next()
		if bad, ok := errors.AsType[errLine](err); ok {
			b := v.broken(at, v.n+1, "%v", bad)
			if bad.torn && newest {
				b.Reason += ": the daemon was killed while writing and will truncate it at its next start; otherwise someone truncated it"
				return &growing{Damage: b}
			}
			return b
		}
		if err == io.EOF && first {
			b := v.broken(0, v.n+1, "the segment is empty")
			if newest {
				return &growing{Damage: b}
			}
			return b
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", segmentPath(v.dir, number), err)
		}
		if err := v.line(line, at, first); err != nil {
			return err
		}
	}
}

// line checks one line and applies its content.
func (v *verifying) line(line []byte, at int64, first bool) error {
	r, err := decode(line)
	if err != nil {
		return v.broken(at, v.n+1, "not an audit record: %v", err)
	}
	begun := v.report.Records > 0
	switch {
	case begun && r.N != v.n+1:
		return v.broken(at, v.n+1, "record %d follows record %d", r.N, v.n)
	case begun && r.Prev != v.last.String():
		return v.broken(at, r.N, "prev does not match record %d: that record was changed, or this one inserted", v.n)
	case first != (r.Type == TypeSegment):
		return v.broken(at, r.N, "only the first record of a segment has type %q", TypeSegment)
	case first && (r.Segment == nil || r.Segment.Number != v.segment):
		return v.broken(at, r.N, "the segment number does not match the file name")
	}
	if !begun {
		v.report.First, v.report.From = r.N, r.At
		v.begins.segment, v.begins.prev = v.segment, r.Prev
	}
	v.n, v.last = r.N, hashOf(line)
	v.report.Records++
	v.report.Last, v.report.To, v.report.Hash = r.N, r.At, v.last.String()
	v.report.Lost += r.Lost
	if h := v.head; r.N == h.N {
		if v.headAt = v.last.String() == h.Hash; !v.headAt {
			return v.broken(at, r.N, "it differs from the record in the head")
		}
	}
	if a := v.anchor; a != nil && r.N == a.N && a.Hash != v.last.String() {
		return v.broken(at, r.N, "it differs from the anchor: the log was rewritten")
	}
	if r.Type == TypeNote && r.Note != nil {
		return v.note(r.Note, at, r.N)
	}
	return nil
}

// note applies a record about the log itself.
func (v *verifying) note(n *Note, at int64, number uint64) error {
	switch n.Kind {
	case NotePruned:
		v.pruned = n
	case NoteMissing:
		// A crash of the machine may lose what was not on disk. Anything else that is missing was removed.
		if n.Restarted && n.HeadN > 0 && n.Synced < number && n.HeadN >= number {
			v.report.Lost += n.HeadN - number + 1
			return nil
		}
		return v.broken(at, number, "records before it were missing when the log was opened: %s", n.Text)
	}
	return nil
}

// end checks both ends.
func (v *verifying) end(list []segmentFile) error {
	if v.begins.segment > 1 {
		p := v.pruned
		if p == nil || p.First < v.begins.segment || p.First == v.begins.segment && p.Hash != v.begins.prev {
			return &Damage{File: segmentPath(v.dir, v.begins.segment-1), Record: v.report.First, Reason: "the segments before are missing, and no record says that they were removed as old"}
		}
		v.report.Pruned = v.begins.segment - 1
	} else if v.report.Records > 0 && (v.report.First != 1 || v.begins.prev != hash{}.String()) {
		return &Damage{File: segmentPath(v.dir, 1), Record: v.report.First, Reason: "it is not the beginning of a log: records before it are missing"}
	}
	if a := v.anchor; a != nil && a.N > v.n {
		return &Damage{File: v.dir, Record: a.N, Reason: fmt.Sprintf("the log ends with record %d, before the anchor", v.n)}
	} else if a != nil && v.report.Records > 0 && a.N < v.report.First {
		return &Damage{File: v.dir, Record: a.N, Reason: "the anchor is older than what is kept of the log; take a newer one"}
	}
	now, err := readHead(v.dir)
	if err == nil && *now != *v.head && v.headAt && now.N >= v.n {
		return nil // it grows, and the last record read is not its end
	}
	switch h := v.head; {
	case !v.headAt:
		return &growing{Damage: &Damage{File: headPath(v.dir), Record: h.N, Reason: fmt.Sprintf("the log ends with record %d, but the head records %d: its end was cut off", v.n, h.N)}}
	case h.N < v.n:
		return &growing{ahead: h, Damage: &Damage{File: headPath(v.dir), Record: h.N + 1, Reason: fmt.Sprintf("the log ends with record %d, but the head records none after %d: records were added, or the daemon was killed and has not started since", v.n, h.N)}}
	case len(list) > 0 && h.Segment != list[len(list)-1].number:
		return &growing{Damage: &Damage{File: headPath(v.dir), Record: h.N, Reason: fmt.Sprintf("the newest segment is %d, but the head records %d", list[len(list)-1].number, h.Segment)}}
	}
	return nil
}
