package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/wire"
)

// open opens a table and returns it with its log.
func open(t testing.TB, c Config) (*Table, *bytes.Buffer) {
	t.Helper()
	if c.Dir == "" {
		c.Dir = filepath.Join(t.TempDir(), "sessions")
	}
	var logs bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(&locked{w: &logs}, nil))
	tab, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close(ended()) })
	return tab, &logs
}

type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// explicit makes a session.
func explicit(t testing.TB, tab *Table, owner string) *Session {
	t.Helper()
	s, err := tab.create(owner, nil, &params{Cwd: "/"}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run begins a call and attempts it.
func run(t testing.TB, s *Session, id string, mutating bool) *Execution {
	t.Helper()
	x, err := s.Begin(t.Context(), Spec{ID: id, Tool: "tool", Kind: KindCall})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Attempt(mutating); err != nil {
		t.Fatal(err)
	}
	return x
}

var fine = &wire.Result{Ran: true}

// TestSessionsAreRestored: sessions are restored after a restart, and calls that
// ran when the daemon ended have an unknown outcome.
func TestSessionsAreRestored(t *testing.T) {
	dir := t.TempDir()
	tab, _ := open(t, Config{Dir: dir})
	def, _ := tab.Find("me", "")
	s := explicit(t, tab, "me")
	child, err := tab.create("me", s, &params{Cwd: "/tmp", Name: "child", Labels: map[string]string{"a": "b"}}, "key", "digest")
	if err != nil {
		t.Fatal(err)
	}
	s.update(func() error { s.name, s.tools = "parent", []string{"git", "tool"}; return nil })
	run(t, s, "one", false).End(fine)
	run(t, s, "two", true).End(&wire.Result{Err: fault.Errorf(fault.Timeout, "too long")})
	run(t, s, "three", true) // and the daemon is killed
	run(t, child, "four", false)

	again, logs := open(t, Config{Dir: dir})
	got, err := again.Find("me", s.id)
	if err != nil {
		t.Fatal(err)
	}
	if got.name != "parent" || fmt.Sprint(got.tools) != "[git tool]" || got.state != Suspended || got.isDef || got.cwd != "/" {
		t.Errorf("the session is %+v", got)
	}
	if o := got.count.Outcomes; got.count.Calls != 3 || o["ok"] != 1 || o["OUTCOME_UNKNOWN"] != 2 {
		t.Errorf("it counts %+v", got.count)
	}
	if c, err := again.Find("me", child.id); err != nil || c.parent != s.id || c.labels["a"] != "b" || len(got.children) != 1 {
		t.Errorf("its child is %+v, %v; children %v", c, err, got.children)
	}
	if d, err := again.Find("me", ""); err != nil || d.id != def.id {
		t.Errorf("the default session is another one: %v", err)
	}
	if o := again.ownerOf("me"); o.explicit != 2 || len(o.keyed.list) != 1 || o.keyed.list[0].key != "key" {
		t.Errorf("of its identity is known %+v", o)
	}
	if _, err := again.Find("you", s.id); err == nil {
		t.Error("another identity finds it")
	}
	if strings.Contains(logs.String(), "is damaged") {
		t.Errorf("the journals are said to be damaged: %s", logs)
	}
	// A third time: the outcomes that the second restart wrote are read.
	third, _ := open(t, Config{Dir: dir})
	got, _ = third.Find("me", s.id)
	if got.count.Calls != 3 || statusOf(got, "skipped") != 0 {
		t.Errorf("then it counts %+v", got.count)
	}
}

// TestDamagedJournals: each kind of damage loses only the records it hit, is
// counted and logged, and later records are intact.
func TestDamagedJournals(t *testing.T) {
	line := func(s string) []byte { return append([]byte(s), '\n') }
	for _, tt := range []struct {
		name    string
		damage  func(whole []byte) []byte
		calls   int64
		skipped int64
	}{
		{"whole", func(b []byte) []byte { return b }, 3, 0},
		{"a torn last line", func(b []byte) []byte { return b[:len(b)-20] }, 3, 1}, // its call ends as unknown
		{"no line break at the end", func(b []byte) []byte { return b[:len(b)-1] }, 3, 0},
		{"an unknown record", func(b []byte) []byte { return append(b, lines(t, journal.Record{Type: "invented"})...) }, 3, 1},
		{"no JSON", func(b []byte) []byte { return append(b, line("{{{")...) }, 3, 1},
		{"zeros, as after a crash of the machine", func(b []byte) []byte { return append(b, make([]byte, 5000)...) }, 3, 1},
		{"a line over the limit", func(b []byte) []byte { return append(b, line(strings.Repeat("x", 3*64<<10))...) }, 3, 1},
		{"a digit that changed", func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"t":"end"`), []byte(`"t":"eND"`), 1)
		}, 3, 1},
		{"a header that is gone", func(b []byte) []byte { return append(line("gone"), b[bytes.IndexByte(b, '\n')+1:]...) }, 3, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tab, _ := open(t, Config{Dir: dir})
			s := explicit(t, tab, "me")
			for i := range 3 {
				run(t, s, fmt.Sprint(i), false).End(fine)
			}
			whole, err := os.ReadFile(s.journal.Path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.journal.Path, tt.damage(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			again, logs := open(t, Config{Dir: dir})
			got, err := again.Find("me", s.id)
			if err != nil {
				t.Fatal(err)
			}
			if got.count.Calls != tt.calls || statusOf(got, "skipped") != tt.skipped {
				t.Errorf("%d calls and %d skipped, must be %d and %d", got.count.Calls, statusOf(got, "skipped"), tt.calls, tt.skipped)
			}
			if said := strings.Contains(logs.String(), "is damaged"); said != (tt.skipped > 0) {
				t.Errorf("damage was logged: %v\n%s", said, logs)
			}
			run(t, got, "after", false).End(fine)
			third, _ := open(t, Config{Dir: dir})
			got, _ = third.Find("me", s.id)
			if got.count.Calls != tt.calls+1 {
				t.Errorf("with one more there are %d calls, must be %d", got.count.Calls, tt.calls+1)
			}
		})
	}
}

// version1 is a journal as version 1 wrote it.
const version1 = `{"t":"session","at":"2026-11-20T10:00:00Z","version":1,"id":"ID","owner":"me","cwd":"/work","created":"2026-11-20T10:00:00Z"}
{"t":"state","at":"2026-11-20T10:00:00Z","id":"ID","owner":"me","state":"active"}
{"t":"begin","at":"2026-11-20T10:00:01Z","execution":"e1","tool":"git","kind":"call"}
{"t":"end","at":"2026-11-20T10:00:02Z","execution":"e1","tool":"git","kind":"call","status":"success","attempts":1,"duration_ms":1000}
{"t":"begin","at":"2026-11-20T10:00:03Z","execution":"e2","tool":"git","kind":"call","mutating":true}
`

func TestOlderJournalsLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "old.jsonl")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(version1, "ID", "old")), 0o600); err != nil {
		t.Fatal(err)
	}
	tab, logs := open(t, Config{Dir: dir})
	s, err := tab.Find("me", "old")
	if err != nil || s.cwd != "/work" || s.count.Calls != 2 || s.count.Outcomes["OUTCOME_UNKNOWN"] != 1 {
		t.Fatalf("%+v, %v\n%s", s, err, logs)
	}
	run(t, s, "e3", false).End(fine)
	// The next record has the current version, and the old file is kept.
	again, _ := open(t, Config{Dir: dir})
	if s, err = again.Find("me", "old"); err != nil || s.count.Calls != 3 || statusOf(s, "skipped") != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(b[:bytes.IndexByte(b, '\n')], []byte(`"version":2`)) {
		t.Errorf("it begins with %.200s, %v", b, err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
	// A line without a checksum is valid in a file of version 1 only.
	if err := os.WriteFile(path, append(b, version1[strings.Index(version1, `{"t":"begin"`):]...), 0o600); err != nil {
		t.Fatal(err)
	}
	third, _ := open(t, Config{Dir: dir})
	if s, _ = third.Find("me", "old"); s.count.Calls != 3 || statusOf(s, "skipped") != 3 {
		t.Errorf("%d calls, %d skipped", s.count.Calls, statusOf(s, "skipped"))
	}
}

// lines are records as a journal writes them.
func lines(t testing.TB, records ...journal.Record) []byte {
	t.Helper()
	j := journal.Journal{Path: t.TempDir() + "/lines", OpenIdle: &atomic.Int32{}}
	for i := range records {
		if _, err := j.Append(func() *journal.Record { return &records[i] }, func() []journal.Record { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	j.Release()
	b, err := os.ReadFile(j.Path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// statusOf is a number of a journal's status.
func statusOf(s *Session, name string) int64 { return s.journal.Status()[name].(int64) }

// TestNewerJournalsLoad: known records of a later version are read.
func TestNewerJournalsLoad(t *testing.T) {
	dir := t.TempDir()
	b := lines(t,
		journal.Record{Type: journal.TypeSession, Version: 99, ID: "new", Owner: "me", Cwd: "/work"},
		journal.Record{Type: "teleport", Execution: "e0"},
		journal.Record{Type: journal.TypeEnd, Execution: "e1", Tool: "git", Kind: KindCall, Status: "success", Attempts: 1},
	)
	path := filepath.Join(dir, "new.jsonl")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	tab, _ := open(t, Config{Dir: dir})
	s, err := tab.Find("me", "new")
	if err != nil || s.count.Calls != 1 || statusOf(s, "skipped") != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	run(t, s, "e2", false).End(fine)
	if kept, err := os.ReadFile(path + ".1"); err != nil || !bytes.Equal(kept, b) {
		t.Errorf("what the later version wrote was not kept: %v", err)
	}
}

// TestJournalRotation: rotation keeps a journal short and loses nothing, even if
// it is interrupted.
func TestJournalRotation(t *testing.T) {
	dir := t.TempDir()
	tab, _ := open(t, Config{Dir: dir})
	s := explicit(t, tab, "me")
	long := run(t, s, "long", true)
	const n = 2500
	for i := range n {
		run(t, s, fmt.Sprint(i), false).End(fine)
	}
	fi, err := os.Stat(s.journal.Path)
	if err != nil || fi.Size() > 256<<10+1000 {
		t.Errorf("after %d calls it has %d bytes, %v", n, fi.Size(), err)
	}
	if _, err := os.Stat(s.journal.Path + ".1"); err != nil {
		t.Error(err)
	}
	again, _ := open(t, Config{Dir: dir})
	got, _ := again.Find("me", s.id)
	if got.count.Calls != n+1 || got.count.Outcomes["OUTCOME_UNKNOWN"] != 1 {
		t.Errorf("%d calls: %v", got.count.Calls, got.count.Outcomes)
	}
	long.End(fine)

	// Between the two renames.
	if err := os.Rename(s.journal.Path, s.journal.Path+".1"); err != nil {
		t.Fatal(err)
	}
	third, _ := open(t, Config{Dir: dir})
	if got, err := third.Find("me", s.id); err != nil || got.count.Calls < n {
		t.Errorf("after a rotation that was cut short: %v", err)
	}

	// The machine crashed before the new file was on the disk.
	third.Close(ended())
	if err := errors.Join(os.Rename(s.journal.Path, s.journal.Path+".1"), os.WriteFile(s.journal.Path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	fourth, _ := open(t, Config{Dir: dir})
	if got, err := fourth.Find("me", s.id); err != nil || got.count.Calls < n {
		t.Errorf("with a new journal that is empty: %v", err)
	}
}

// TestForgottenJournalsAreNotRecreated: a call that ends after its session was
// forgotten creates no file.
func TestForgottenJournalsAreNotRecreated(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	x := run(t, s, "e", true)
	s.close()
	tab.forget(s)
	x.End(fine)
	<-s.done
	if files, _ := filepath.Glob(s.journal.Path + "*"); len(files) > 0 {
		t.Errorf("there are %v", files)
	}
}

// TestJobsAreRestored: a restart restores the last jobs of an identity, in order
// and within the limit.
func TestJobsAreRestored(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{Dir: dir})
		sessions := []*Session{explicit(t, tab, "me"), explicit(t, tab, "me"), explicit(t, tab, "me")}
		const maxFinished = 20 // how many of an identity stay
		const n = 3*maxFinished + 1
		for i := range n {
			j, err := tab.NewJob("me", "", false, &wire.Call{ExecutionID: fmt.Sprint(i), Tool: "t"}, func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			x, err := sessions[i%3].Begin(t.Context(), Spec{ID: j.ID, Tool: "t", Kind: KindJob, Job: j})
			if err != nil {
				t.Fatal(err)
			}
			x.Attempt(true)
			j.Admit()
			time.Sleep(time.Second)
			x.End(fine)
		}
		ids := func(tab *Table) (ids []string) {
			for _, j := range tab.jobs.List("me", false) {
				ids = append(ids, j.ID)
			}
			return ids
		}
		before := ids(tab)
		if len(before) != maxFinished || before[maxFinished-1] != fmt.Sprint(n-1) {
			t.Fatalf("before: %v", before)
		}
		again, _ := open(t, Config{Dir: dir})
		if after := ids(again); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("before: %v\nafter:  %v", before, after)
		}
		tab.Close(ended())
		again.Close(ended())
	})
}

// TestRotationKeepsConcurrentEnds: a rotated journal never lists a call as running
// whose end is in the previous file.
func TestRotationKeepsConcurrentEnds(t *testing.T) {
	dir := t.TempDir()
	tab, _ := open(t, Config{Dir: dir})
	s := explicit(t, tab, "me")
	x := run(t, s, "x", true)
	written := statusOf(s, "records")
	over := make(chan struct{})
	s.mu.Lock()
	go func() { defer close(over); x.End(fine) }()
	for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); runtime.Gosched() {
		if statusOf(s, "records") != written {
			t.Error("the journal has the end of a call that its session still counts as running")
			break
		}
	}
	s.mu.Unlock()
	<-over

	const callers, each = 8, 25
	blank := bytes.Repeat([]byte("\n"), 256<<10+1)
	var calls sync.WaitGroup
	for c := range callers {
		calls.Go(func() {
			for i := range each {
				x := run(t, s, fmt.Sprint(c, " ", i), true)
				s.journal.Release()
				if f, err := os.OpenFile(s.journal.Path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
					f.Write(blank) // the next record begins it anew
					f.Close()
				} // else it is being rotated
				x.End(fine)
				s.update(func() error { s.name = fmt.Sprint(c, " ", i); return nil })
			}
		})
	}
	calls.Wait()
	again, _ := open(t, Config{Dir: dir})
	got, err := again.Find("me", s.id)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.count.Outcomes["ok"]; n != callers*each+1 || got.count.Calls != n {
		t.Errorf("of %d calls that ended well, the journal has %v", callers*each+1, got.count.Outcomes)
	}
	if got.name != s.name {
		t.Errorf("the session is named %q, and %q after a restart", s.name, got.name)
	}
}

// unwritable makes a journal unwritable in several ways; each is undone at the end
// of the test.
var unwritable = map[string]func(t *testing.T, s *Session){
	"no space on disk": func(t *testing.T, s *Session) {
		if runtime.GOOS != "linux" {
			t.Skip("needs /dev/full")
		}
		os.Remove(s.journal.Path)
		if err := os.Symlink("/dev/full", s.journal.Path); err != nil {
			t.Fatal(err)
		}
	},
	"a read-only folder": func(t *testing.T, s *Session) {
		readOnly(t, filepath.Dir(s.journal.Path), s.journal.Path)
	},
	"a folder that is none": func(t *testing.T, s *Session) {
		dir := filepath.Dir(s.journal.Path)
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	},
}

// TestJournalsThatCannotBeWritten: reading calls run, mutating ones are refused
// with the reason, and lost records are counted once writing works again.
func TestJournalsThatCannotBeWritten(t *testing.T) {
	for name, break_ := range unwritable {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread() // see readOnly
			defer runtime.UnlockOSThread()
			tab, logs := open(t, Config{})
			s := explicit(t, tab, "me")
			whole, err := os.ReadFile(s.journal.Path)
			if err != nil {
				t.Fatal(err)
			}
			break_(t, s)
			run(t, s, "reads", false).End(fine)
			x, err := s.Begin(t.Context(), Spec{ID: "changes", Tool: "tool", Kind: KindCall})
			if err != nil {
				t.Fatal(err)
			}
			_, err = x.Attempt(true)
			var e *fault.Error
			if !errors.As(err, &e) || e.Code != fault.StoreUnavailable || !strings.Contains(e.Message, "journal") {
				t.Errorf("a call that changes something: %v", err)
			}
			x.End(&wire.Result{Err: e})
			if err := s.flush(); err == nil || !strings.Contains(err.Error(), "STORE_UNAVAILABLE") {
				t.Errorf("flush: %v", err)
			}
			if _, err := tab.create("me", nil, &params{Cwd: "/"}, "", ""); name != "no space on disk" && (err == nil || !strings.Contains(err.Error(), "STORE_UNAVAILABLE")) {
				t.Errorf("create: %v", err)
			}
			if n := tab.ownerOf("me").explicit; name != "no space on disk" && n != 1 {
				t.Errorf("%d sessions count, must be 1", n)
			}
			if n := strings.Count(logs.String(), "session="+s.id); n != 1 {
				t.Errorf("it was said %d times:\n%s", n, logs)
			}
			status := s.journal.Status()
			if status["lost"].(int64) < 4 || status["error"] == "" {
				t.Errorf("its status is %v", status)
			}
			// It can be written again.
			writable(t, filepath.Dir(s.journal.Path))
			os.Remove(s.journal.Path)
			os.Remove(filepath.Dir(s.journal.Path))
			if err := errors.Join(os.MkdirAll(filepath.Dir(s.journal.Path), 0o700), os.WriteFile(s.journal.Path, whole, 0o600)); err != nil {
				t.Fatal(err)
			}
			run(t, s, "after", true).End(fine)
			again, logs := open(t, Config{Dir: filepath.Dir(s.journal.Path)})
			if got, err := again.Find("me", s.id); err != nil || got.count.Calls != 1 || !strings.Contains(logs.String(), "lost=") {
				t.Errorf("%+v, %v\n%s", got, err, logs)
			}
		})
	}
}

// BenchmarkJournal measures a call's two records, without and with a sync of each:
// the reason not to sync.
func BenchmarkJournal(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			dir, err := os.MkdirTemp(".", "bench-") // on a disk, where $TMPDIR may be memory
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			tab, _ := open(b, Config{Dir: dir})
			s := explicit(b, tab, "me")
			for b.Loop() {
				for _, r := range []*journal.Record{{Type: journal.TypeBegin, Execution: "e", Tool: "t"}, {Type: journal.TypeEnd, Execution: "e", Tool: "t"}} {
					r.At = time.Now()
					s.append(r)
					if sync {
						s.journal.Flush(func() []journal.Record { return firstRecords(s) })
					}
				}
				s.journal.Release()
			}
		})
	}
}
