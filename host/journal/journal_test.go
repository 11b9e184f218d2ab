package journal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

// Of idle journals, maxOpenIdle stay open, and those that are released make room.
func TestOpenIdleIsBounded(t *testing.T) {
	dir, open := t.TempDir(), &atomic.Int32{}
	var list []*Journal
	for i := range maxOpenIdle + 3 {
		j := &Journal{Path: fmt.Sprint(dir, "/", i), OpenIdle: open}
		list = append(list, j)
		for range 2 {
			if _, err := j.Append(func() *Record { return &Record{Type: TypeBegin} }, func() []Record { return nil }); err != nil {
				t.Fatal(err)
			}
			j.ReleaseIdle()
		}
		if is := j.file != nil; is != (i < maxOpenIdle) {
			t.Errorf("journal %d stays open: %v", i, is)
		}
	}
	for _, j := range list {
		j.Release()
	}
	if n := open.Load(); n != 0 {
		t.Errorf("%d count as open", n)
	}
}

// TestPipeForAJournal: nobody waits for the other end of a pipe.
func TestPipeForAJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "not a regular file") {
		t.Error(err)
	}
}

// FuzzJournal: reading any file terminates, and records appended to it are read.
func FuzzJournal(f *testing.F) {
	var b bytes.Buffer
	for _, r := range []Record{
		{Type: TypeSession, Version: 2, ID: "s", Owner: "me", Cwd: "/work"},
		{Type: TypeState, State: "active", ID: "s", Owner: "me"},
		{Type: TypeSet, Name: "n", Labels: map[string]string{"a": "b"}, Tools: &[]string{"git"}},
		{Type: TypeBegin, Execution: "e", Tool: "git", Kind: "job", Job: true},
		{Type: TypeEnd, Execution: "e", Tool: "git", Kind: "job", Job: true, Code: fault.Timeout, Attempts: 1},
		{Type: TypeSnapshot, Counters: &Counters{Calls: 5}, Pending: []Record{{Type: TypeBegin, Execution: "p"}}},
	} {
		b.Write(r.encode())
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"t":"session","version":1,"id":"s","owner":"me"}` + "\n" + `{"t":"end","execution":"e","tool":"git","attempts":1}` + "\n"))
	f.Add(b.Bytes()[:b.Len()-7])
	f.Add([]byte("\n\x00\n{}\n"))
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		d := bytes.Clone(b.Bytes())
		for range 1 + r.IntN(8) {
			d[r.IntN(len(d))] = byte(r.Uint32())
		}
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before, err := replay(bytes.NewReader(data))
		end := Record{Type: TypeEnd, Execution: "new", Tool: "t", Attempts: 1}
		if len(data) > 0 && data[len(data)-1] != '\n' {
			data = append(data[:len(data):len(data)], '\n')
		}
		after, err2 := replay(bytes.NewReader(append(data[:len(data):len(data)], end.encode()...)))
		if (err == nil) != (err2 == nil) {
			t.Fatalf("before %v, after %v", err, err2)
		}
		if err == nil && (after.Records != before.Records+1 || after.Skipped != before.Skipped || after.Count.Calls != before.Count.Calls+1) {
			t.Fatalf("one record more made %d and %d skipped of %d and %d", after.Records, after.Skipped, before.Records, before.Skipped)
		}
		if err == nil && before.Header.ID == "" {
			t.Fatal("it was read without a header")
		}
	})
}
