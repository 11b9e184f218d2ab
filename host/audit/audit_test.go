package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var on = Options{On: true, MaxBytes: 1 << 30, MaxAge: 90 * 24 * time.Hour}

// quiet is for logs of which the test says what is to be found.
var quiet = slog.New(slog.DiscardHandler)

func open(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// begin and end are a call that changes something.
func begin(i int) func() *Record {
	return func() *Record {
		return &Record{At: time.Now(), Type: TypeBegin, Call: &Call{
			Execution: fmt.Sprintf("execution-%d", i), Tool: "git", Args: []string{"push", "origin", fmt.Sprint("branch-", i)}, Effect: EffectAllow, Runs: &Runs{Mutating: true},
		}}
	}
}

func end(i int, begin uint64) func() *Record {
	return func() *Record {
		r := &Record{At: time.Now(), Type: TypeEnd, End: &End{Begin: begin, Execution: fmt.Sprintf("execution-%d", i), Status: "success"}}
		if begin == 0 {
			r.Call = &Call{Execution: r.End.Execution, Tool: "git", Args: []string{"status"}, Effect: EffectAllow, Runs: &Runs{}}
		}
		return r
	}
}

func mustAdd(t testing.TB, l *Log, i int) uint64 {
	t.Helper()
	n, err := l.AddSync(t.Context(), 100, begin(i))
	if err != nil {
		t.Fatal(err)
	}
	l.Add(100, end(i, n))
	return n
}

func holds(t testing.TB, dir string) Report {
	t.Helper()
	r, err := Verify(dir, nil)
	if err != nil {
		t.Fatalf("the log does not hold: %v", err)
	}
	return r
}

// breaks is why a log does not hold.
func breaks(t testing.TB, dir string) *Damage {
	t.Helper()
	_, err := Verify(dir, nil)
	b, ok := errors.AsType[*Damage](err)
	if !ok {
		t.Fatalf("the log holds: %v", err)
	}
	return b
}

// notes are the kinds of the notes in a log, in turn.
func notes(t testing.TB, dir string) (list []string) {
	t.Helper()
	if err := Read(dir, time.Time{}, func(_ Position, r *Record, _ []byte) bool {
		if r.Note != nil {
			list = append(list, r.Note.Kind)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir, on)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				mustAdd(t, l, i*50+j)
				l.Add(100, end(i*50+j, 0))
			}
		})
	}
	wg.Wait()
	if _, err := Verify(dir, nil); err != nil { // while it is open
		t.Errorf("a log that is open does not hold: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AddSync(t.Context(), 1, begin(1)); err == nil {
		t.Error("a log that is closed takes a record")
	}
	r := holds(t, dir)
	if r.Records != 3+3*400 || r.Lost != 0 {
		t.Errorf("%+v", r)
	}
	list, err := Calls(dir, Query{})
	if err != nil || len(list) != 800 {
		t.Fatalf("%d calls, %v", len(list), err)
	}
	for _, e := range list {
		if e.End == nil {
			t.Errorf("%s has no end", e.Call.Execution)
		}
	}
	for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, segmentPath(dir, 1): 0o600, headPath(dir): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, fi.Mode(), err, want)
		}
	}
	anchor := &Anchor{r.Last, r.Hash}
	l = open(t, dir, on) // and on
	mustAdd(t, l, 1)
	l.Close()
	if after, err := Verify(dir, anchor); err != nil || after.Last != r.Last+4 {
		t.Errorf("%+v, %v", after, err)
	}
	if _, err := Verify(dir, &Anchor{r.Last, strings.Repeat("a", 64)}); err == nil {
		t.Error("an anchor of another log is taken")
	}
	if _, err := Verify(dir, &Anchor{r.Last + 100, r.Hash}); err == nil {
		t.Error("an anchor that the log does not reach is taken")
	}
}

// Which calls are listed, in which order, and how many.
func TestCalls(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir, on)
	const count = 500
	for i := range count {
		if i%2 == 0 {
			mustAdd(t, l, i)
		} else {
			l.Add(100, end(i, 0))
		}
	}
	cut, err := l.AddSync(t.Context(), 100, begin(count))
	if err != nil {
		t.Fatal(err)
	}
	moved, err := l.AddSync(t.Context(), 100, func() *Record { r := begin(count + 1)(); r.Call.Replaces = cut; return r })
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	names := func(q Query) (list []string) {
		t.Helper()
		entries, err := Calls(dir, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, strings.TrimPrefix(e.Call.Execution, "execution-"))
		}
		return list
	}
	if got, want := names(Query{Limit: 3}), []string{"498", "499", "501"}; !slices.Equal(got, want) {
		t.Errorf("the newest are %v, want %v", got, want)
	}
	if got, want := names(Query{Limit: 3, Oldest: true}), []string{"0", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("the oldest are %v, want %v", got, want)
	}
	mutating := func(e *CallEntry) bool { return e.Call.Runs.Mutating && e.End != nil }
	if got, want := names(Query{Limit: 2, Match: mutating}), []string{"496", "498"}; !slices.Equal(got, want) {
		t.Errorf("the newest that match are %v, want %v", got, want)
	}
	if got, want := names(Query{Limit: 2, Oldest: true, Match: mutating}), []string{"0", "2"}; !slices.Equal(got, want) {
		t.Errorf("the oldest that match are %v, want %v", got, want)
	}
	if got := names(Query{}); len(got) != count+1 {
		t.Errorf("%d calls, want %d", len(got), count+1)
	}
	if got := names(Query{Match: func(e *CallEntry) bool { return e.N == moved }}); len(got) != 1 {
		t.Errorf("the begin that replaced another: %v", got)
	}
	if got := names(Query{Until: time.Now().Add(-time.Hour)}); len(got) != 0 {
		t.Errorf("before the first: %v", got)
	}
	if got := names(Query{Since: time.Now().Add(time.Hour)}); len(got) != 0 {
		t.Errorf("after the last: %v", got)
	}
}

// files is a log in memory.
func files(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	m := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if m[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func put(t testing.TB, dir string, m map[string][]byte) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, b := range m {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// grow makes a log of several segments.
func grow(t testing.TB, dir string, o Options, records int) {
	t.Helper()
	l := open(t, dir, o)
	for i := range records {
		l.Add(100, end(i, 0))
		if i%100 == 0 {
			mustAdd(t, l, i) // so that one batch is written after the other
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Every change of one place in a log is found: this is what its chain and its head
// are for.
func TestEveryEditIsFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	grow(t, dir, Options{On: true, MaxBytes: 1 << 20, MaxAge: time.Hour}, 1500)
	whole := files(t, dir)
	holds(t, dir)
	names := slices.Sorted(maps.Keys(whole))
	segs := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "head" })
	if len(segs) < 3 {
		t.Fatalf("only %d segments", len(segs))
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %d segments", seed, len(segs))
	r := rand.New(rand.NewPCG(seed, 1))
	split := func(b []byte) [][]byte { return bytes.SplitAfter(bytes.TrimSuffix(b, []byte("\n")), []byte("\n")) }
	join := func(lines [][]byte) []byte {
		return append(bytes.TrimSuffix(bytes.Join(lines, nil), []byte("\n")), '\n')
	}
	edits := map[string]func(m map[string][]byte){
		"flip a bit": func(m map[string][]byte) {
			b := m[names[r.IntN(len(names))]]
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		},
		"write a byte": func(m map[string][]byte) {
			b := m[names[r.IntN(len(names))]]
			b[r.IntN(len(b))] = byte(r.IntN(256))
		},
		"take bytes out": func(m map[string][]byte) {
			name := names[r.IntN(len(names))]
			b := m[name]
			at := r.IntN(len(b))
			m[name] = slices.Delete(b, at, min(len(b), at+1+r.IntN(2000)))
		},
		"put bytes in": func(m map[string][]byte) {
			name := names[r.IntN(len(names))]
			b := m[name]
			junk := make([]byte, 1+r.IntN(2000))
			for i := range junk {
				junk[i] = "abc{}\"\n\x00,0"[r.IntN(10)]
			}
			m[name] = slices.Insert(b, r.IntN(len(b)+1), junk...)
		},
		"take a record out": func(m map[string][]byte) {
			name := segs[r.IntN(len(segs))]
			lines := split(m[name])
			m[name] = join(slices.Delete(lines, 0, 1))
			if at := r.IntN(len(lines)); at > 0 {
				lines = split(whole[name])
				m[name] = join(slices.Delete(lines, at, at+1))
			}
		},
		"put a record in again": func(m map[string][]byte) {
			name := segs[r.IntN(len(segs))]
			lines := split(m[name])
			lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
			m[name] = join(slices.Insert(lines, r.IntN(len(lines)+1), lines[r.IntN(len(lines))]))
		},
		"forge a record": func(m map[string][]byte) { // with the right number and the right hash
			name := segs[r.IntN(len(segs))]
			lines := split(m[name])
			lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
			at := 1 + r.IntN(len(lines))
			before, err := decode(bytes.TrimSuffix(lines[at-1], []byte("\n")))
			if err != nil {
				t.Fatal(err)
			}
			forged := end(1, 0)()
			forged.N, forged.Prev = before.N+1, hashOf(lines[at-1]).String()
			var b bytes.Buffer
			if err := forged.encode(&b); err != nil {
				t.Fatal(err)
			}
			if at < len(lines) && r.IntN(2) == 0 {
				lines[at] = b.Bytes()
			} else {
				lines = slices.Insert(lines, at, b.Bytes())
			}
			m[name] = join(lines)
		},
		"swap two records": func(m map[string][]byte) {
			name := segs[r.IntN(len(segs))]
			lines := split(m[name])
			lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
			i, j := r.IntN(len(lines)), r.IntN(len(lines))
			lines[i], lines[j] = lines[j], lines[i]
			m[name] = join(lines)
		},
		"cut the end off": func(m map[string][]byte) {
			name := segs[len(segs)-1]
			m[name] = m[name][:r.IntN(len(m[name]))]
		},
		"cut the newest records off": func(m map[string][]byte) {
			name := segs[len(segs)-1]
			lines := split(m[name])
			m[name] = bytes.Join(lines[:r.IntN(len(lines))], nil)
		},
		"take a file away": func(m map[string][]byte) { delete(m, names[r.IntN(len(names))]) },
		"swap two files": func(m map[string][]byte) {
			a, b := names[r.IntN(len(names))], names[r.IntN(len(names))]
			m[a], m[b] = m[b], m[a]
		},
		"add a file": func(m map[string][]byte) {
			m[fmt.Sprintf("%08d.log", len(segs)+1+r.IntN(3))] = m[segs[r.IntN(len(segs))]]
		},
		"an older head":     func(m map[string][]byte) { m["head"] = olderHead(t, split(m[segs[len(segs)-1]]), len(segs)) },
		"empty a file":      func(m map[string][]byte) { m[names[r.IntN(len(names))]] = nil },
		"take all but head": func(m map[string][]byte) { maps.DeleteFunc(m, func(n string, _ []byte) bool { return n != "head" }) },
	}
	kinds := slices.Sorted(maps.Keys(edits))
	scratch := filepath.Join(t.TempDir(), "audit")
	found := 0
	for i := 0; found < 1000; i++ {
		m := map[string][]byte{}
		for name, b := range whole {
			m[name] = bytes.Clone(b)
		}
		kind := kinds[i%len(kinds)]
		edits[kind](m)
		if maps.EqualFunc(m, whole, bytes.Equal) {
			continue
		}
		found++
		put(t, scratch, m)
		synctest.Test(t, func(t *testing.T) { // a log that may be growing is looked at again
			if report, err := Verify(scratch, nil); err == nil {
				t.Errorf("%s: not found: %+v", kind, report)
			} else if _, ok := errors.AsType[*Damage](err); !ok {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
}

// olderHead is the head as it was a record ago.
func olderHead(t *testing.T, lines [][]byte, number int) []byte {
	line := lines[len(lines)-2]
	r, err := decode(bytes.TrimSuffix(line, []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := head{Version: Version, Segment: uint64(number), N: r.N, Hash: hashOf(line).String(), Synced: r.N, Boot: bootID()}.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a daemon leaves that was killed while it wrote is cut off, and noted.
func TestTornRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	grow(t, dir, on, 3)
	whole := files(t, dir)
	last := holds(t, dir).Last
	for cut := 1; cut < 200; cut += 7 {
		m := maps.Clone(whole)
		line := bytes.Repeat([]byte("x"), 200)
		copy(line, `{"n":9,"prev":"`)
		m["00000001.log"] = append(bytes.Clone(whole["00000001.log"]), line[:cut]...)
		put(t, dir, m)
		l := open(t, dir, on)
		mustAdd(t, l, 1)
		l.Close()
		if r := holds(t, dir); r.Last != last+4 {
			t.Fatalf("%d bytes torn: %+v", cut, r)
		}
		if err := Read(dir, time.Time{}, func(_ Position, r *Record, _ []byte) bool {
			if r.N == last+1 && (r.Note == nil || r.Note.Kind != NoteOpened || r.Note.CutBytes != int64(cut)) {
				t.Errorf("%d bytes torn: %+v", cut, r.Note)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon that was killed at any byte of a new segment goes on in it.
func TestTornSegment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	o := Options{On: true, MaxBytes: 1 << 20, MaxAge: time.Hour}
	grow(t, dir, o, 700)
	whole := files(t, dir)
	newest := slices.Max(slices.DeleteFunc(slices.Collect(maps.Keys(whole)), func(n string) bool { return n == "head" }))
	header := bytes.IndexByte(whole[newest], '\n')
	if newest == "00000001.log" || header < 0 {
		t.Fatal("there is one segment")
	}
	for cut := 0; cut <= header; cut += 9 {
		m := maps.Clone(whole)
		m[newest] = whole[newest][:cut]
		// The head is as it was before the segment.
		before := fmt.Sprintf("%08d.log", 1)
		for n := range m {
			if n != "head" && n < newest && n > before {
				before = n
			}
		}
		lines := bytes.SplitAfter(m[before], []byte("\n"))
		number, _ := segmentNumber(before)
		m["head"] = olderHead(t, append(lines, nil)[:len(lines)], int(number))
		put(t, dir, m)
		l := open(t, dir, o)
		mustAdd(t, l, 1)
		l.Close()
		holds(t, dir)
	}
}

// Records that were taken from the end before a daemon opened the log are missed,
// by it and from then on.
func TestMissingAtOpen(t *testing.T) {
	for name, take := range map[string]func(m map[string][]byte){
		"the newest record": func(m map[string][]byte) {
			b := bytes.TrimSuffix(m["00000001.log"], []byte("\n"))
			m["00000001.log"] = b[:bytes.LastIndexByte(b, '\n')+1]
		},
		"the head": func(m map[string][]byte) { delete(m, "head") },
		"all but the head": func(m map[string][]byte) {
			delete(m, "00000001.log")
		},
		"another last record": func(m map[string][]byte) {
			m["00000001.log"] = bytes.Replace(m["00000001.log"], []byte(`"kind":"closed"`), []byte(`"kind":"clozed"`), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			grow(t, dir, on, 3)
			m := files(t, dir)
			take(m)
			put(t, dir, m)
			l := open(t, dir, on)
			mustAdd(t, l, 1)
			l.Close()
			if list := notes(t, dir); !slices.Contains(list, NoteMissing) {
				t.Errorf("the notes are %q", list)
			}
			t.Log(breaks(t, dir))
		})
	}
}

// What the end of the machine took is no break where it was not on the disk, and is
// one where it was.
func TestMissingAfterRestart(t *testing.T) {
	for _, tt := range []struct {
		synced uint64 // of 7 records, of which 5 are left
		holds  bool
	}{{5, true}, {6, false}} {
		dir := filepath.Join(t.TempDir(), "audit")
		grow(t, dir, on, 3)
		m := files(t, dir)
		h, err := decodeHead(m["head"])
		if err != nil || h.N != 8 {
			t.Fatalf("%+v, %v", h, err)
		}
		lines := bytes.SplitAfter(m["00000001.log"], []byte("\n"))
		m["00000001.log"] = bytes.Join(lines[:5], nil)
		h.Boot, h.Synced = "another", tt.synced
		if m["head"], err = h.encode(); err != nil {
			t.Fatal(err)
		}
		put(t, dir, m)
		open(t, dir, on).Close()
		r, err := Verify(dir, nil)
		if holds := err == nil; holds != tt.holds {
			t.Errorf("synced up to %d: %+v, %v", tt.synced, r, err)
		}
		if tt.holds && r.Lost != 3 {
			t.Errorf("%d are lost, want 3", r.Lost)
		}
	}
}

// The log stays within its bounds, and says what it removed; what is removed
// without that is found.
func TestPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	o := Options{On: true, MaxBytes: 1 << 20, MaxAge: time.Hour}
	grow(t, dir, o, 6000)
	total := 0
	m := files(t, dir)
	for _, b := range m {
		total += len(b)
	}
	r := holds(t, dir)
	if total > 1<<20 || r.Pruned == 0 || r.First == 1 {
		t.Errorf("%d bytes, %+v", total, r)
	}
	first := fmt.Sprintf("%08d.log", r.Pruned+1)
	delete(m, first)
	put(t, dir, m)
	if b := breaks(t, dir); !strings.Contains(b.Reason, "removed as old") {
		t.Errorf("one more was removed: %v", b)
	}
}

func TestPruneByAge(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	synctest.Test(t, func(t *testing.T) {
		l := open(t, dir, Options{On: true, MaxBytes: 1 << 30, MaxAge: 72 * time.Hour})
		for i := range 10 {
			mustAdd(t, l, i)
			time.Sleep(24*time.Hour + time.Minute)
		}
		synctest.Wait()
		r := holds(t, dir)
		if age := time.Since(r.From); age > 5*24*time.Hour || age < 72*time.Hour || r.Pruned == 0 {
			t.Errorf("the oldest record is %v old; %+v", age, r)
		}
		l.Close()
		holds(t, dir)
	})
}

// A log that cannot be written refuses what has to be on the disk, counts what has
// not, and goes on when it can.
func TestCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir, on)
	if _, err := l.AddSync(t.Context(), 1, begin(1)); err != nil { // and nothing after it
		t.Fatal(err)
	}
	aside := dir + ".aside"
	if err := errors.Join(os.Rename(dir, aside), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	l.Add(1, end(3, 0))
	for range 3 {
		if n, err := l.AddSync(t.Context(), 1, begin(2)); err == nil {
			t.Errorf("record %d is written, and there is no folder", n)
		}
	}
	if err := errors.Join(os.Remove(dir), os.Rename(aside, dir)); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, l, 4)
	l.Close()
	if r := holds(t, dir); r.Lost < 3 {
		t.Errorf("%d are lost", r.Lost)
	}
}

// A segment that another file stands in the place of is not written any more.
func TestSegmentTaken(t *testing.T) {
	for name, take := range map[string]func(path string) error{
		"a folder": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"nothing":  os.Remove,
		"an older copy": func(path string) error {
			b, err := os.ReadFile(path)
			b = b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1]
			return errors.Join(err, os.Remove(path), os.WriteFile(path, b, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			l := open(t, dir, on)
			mustAdd(t, l, 1)
			if err := take(segmentPath(dir, 1)); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, l, 2)
			l.Close()
			list, err := Calls(dir, Query{})
			if err != nil || len(list) == 0 || list[len(list)-1].Call.Execution != "execution-2" {
				t.Errorf("%d calls, %v", len(list), err)
			}
			t.Log(breaks(t, dir))
		})
	}
}

func TestSet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	off := on
	off.On = false
	l := open(t, dir, off)
	if n, err := l.AddSync(t.Context(), 1, begin(1)); n != 0 || err != nil {
		t.Errorf("a log that is off: %d, %v", n, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a log that is off made its folder")
	}
	for _, o := range []Options{on, off, on} {
		if err := l.Set(o); err != nil {
			t.Fatal(err)
		}
		if l.On() != o.On {
			t.Errorf("it is on: %v", l.On())
		}
		l.AddSync(t.Context(), 1, begin(1))
	}
	l.Close()
	holds(t, dir)
	if got, want := notes(t, dir), []string{NoteOpened, NoteOn, NoteOff, NoteOpened, NoteOn, NoteClosed}; !slices.Equal(got, want) {
		t.Errorf("the notes are %q, want %q", got, want)
	}
	if list, err := Calls(dir, Query{}); err != nil || len(list) != 2 {
		t.Errorf("%d calls, %v", len(list), err)
	}
	if err := l.Set(off); err == nil {
		t.Error("a log that is closed is changed")
	}
	// One that cannot be opened stays off.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, filepath.Join(file, "audit"), off)
	if err := l.Set(on); err == nil || l.On() {
		t.Errorf("%v", err)
	}
	if _, err := Open(filepath.Join(file, "audit"), on, quiet); err == nil || !strings.Contains(err.Error(), "audit.mode") {
		t.Errorf("%v", err)
	}
}

// A record that is too long is written without its parts, and one that cannot be
// made is the only one that is not written.
func TestBadRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := open(t, dir, on)
	long := strings.Repeat("\x01", MaxLine)
	if _, err := l.AddSync(t.Context(), 1, func() *Record {
		r := begin(1)()
		r.Call.Args = []string{long}
		r.Call.Asked = []Asked{{Error: long}}
		return r
	}); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := l.AddSync(t.Context(), 1, func() *Record {
				if i%2 == 0 {
					panic("a part of it is broken")
				}
				return begin(i)()
			})
			if (err != nil) != (i%2 == 0) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	l.Close()
	holds(t, dir)
	list, err := Calls(dir, Query{})
	if err != nil || len(list) != 11 || !slices.Contains(list[0].Call.Reduced, "args") {
		t.Errorf("%d calls, %v", len(list), err)
	}
}

// A caller that leaves does not wait for the disk.
func TestLeft(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit"), on)
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	if _, err := l.AddSync(ctx, 1, func() *Record {
		cancel(left)
		<-ctx.Done()
		return begin(1)()
	}); err != nil && !errors.Is(err, left) {
		t.Error(err)
	}
}
