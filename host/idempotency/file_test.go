package idempotency

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/redisdb"
)

// victimEnv makes this test binary the process that TestFileSurvivesKill kills.
const victimEnv = "TOOLD_IDEMPOTENCY_VICTIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		if err := victim(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redisdb.LogTo(slog.New(slog.DiscardHandler)) // it tells of every fault that a test makes
	os.Exit(m.Run())
}

// victim claims and completes keys in many goroutines and prints them, until it
// is killed.
func victim(path string) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	round := fmt.Sprint(os.Getpid())
	var mu sync.Mutex
	say := func(word, key string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(word, key)
	}
	for g := range 8 {
		go func() {
			for n := 0; ; n++ {
				i := id{"tool", fmt.Sprintf("%s-%d-%d", round, g, n)}
				if _, _, v, err := f.claim(context.Background(), i, testClaim("a")); err != nil || v != verdictRun {
					panic(fmt.Sprint(v, err))
				}
				say("claimed", i.key)
				if n%10 == 9 {
					continue // it runs for ever
				}
				if v, err := f.complete(context.Background(), i, success("a", 1)); err != nil || v != verdictDone {
					panic(fmt.Sprint(v, err))
				}
				say("completed", i.key)
			}
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin) // ends with the test at the latest
	return err
}

func count(t *testing.T, variable string, otherwise int) int {
	n := otherwise
	if s := os.Getenv(variable); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatalf("%s=%q: %v", variable, s, err)
		}
	}
	return n
}

// A process is killed repeatedly while it claims and completes keys in one file:
// printed completions are there, and begun calls are unknown.
func TestFileSurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	completed, begun := 0, 0
	for range count(t, "TOOLD_IDEMPOTENCY_KILLS", 8) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), victimEnv+"="+path)
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		said := map[string]string{}
		enough := 1 + rand.IntN(400)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			word, key, _ := strings.Cut(lines.Text(), " ")
			said[key] = word
			if n == enough {
				_ = c.Process.Kill()
			}
		}
		_ = c.Wait()
		_ = in.Close()
		if len(said) == 0 {
			t.Fatal("it said nothing")
		}
		f, err := openFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for key, word := range said {
			r, _, err := f.get(t.Context(), id{"tool", key})
			switch {
			case err != nil || r == nil:
				t.Fatalf("%s was %s: %v, %v", key, word, r, err)
			case word == "completed" && (r.Status != Completed || string(r.Result) != string(success("", 0).result)):
				t.Fatalf("%s was completed: %+v", key, r)
			case word == "claimed" && r.Status != Completed && !r.outcomeUnknown():
				t.Fatalf("%s was claimed: %+v", key, r)
			}
			if word == "completed" {
				completed++
			} else {
				begun++
			}
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged as completed, none lost; %d were running", completed, begun)
}

// PENDING records of a previous process are settled on open.
func TestFileSettles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "s.db")
	f, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	safe := testClaim("a")
	safe.rerun = true
	for key, c := range map[string]claimRequest{"done": testClaim("a"), "running": testClaim("a"), "safe": safe} {
		if _, _, v, err := f.claim(t.Context(), id{"tool", key}, c); v != verdictRun || err != nil {
			t.Fatal(v, err)
		}
	}
	if v, err := f.complete(t.Context(), id{"tool", "done"}, success("a", 1)); v != verdictDone || err != nil {
		t.Fatal(v, err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := f.claim(t.Context(), id{"tool", "new"}, safe); !errors.Is(err, ErrStoreUnavailable) {
		t.Errorf("a claim of a closed file: %v", err)
	}
	if f, err = openFile(path); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	safe.owner = "b"
	for key, want := range map[string]verdict{"done": verdictReplay, "running": verdictUnknown, "safe": verdictTakeOver} {
		if _, _, v, err := f.claim(t.Context(), id{"tool", key}, safe); v != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", key, v, err, want)
		}
	}
}

func TestFileIsOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	f, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if _, err := openFile(path); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("opened twice: %v", err)
	}
}

func TestFileDamaged(t *testing.T) {
	t.Run("as a whole", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s.db")
		if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 4000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openFile(path); err == nil || !strings.Contains(err.Error(), "move it away") {
			t.Error(err)
		}
	})
	t.Run("emptied", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s.db")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openFile(path); err == nil || !strings.Contains(err.Error(), "it is empty") || !strings.Contains(err.Error(), "move it away") {
			t.Error(err)
		}
	})
	t.Run("a pipe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s.db")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openFile(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Error(err)
		}
	})
	t.Run("a page", func(t *testing.T) { damagePages(t) })
	t.Run("one record", func(t *testing.T) {
		s := fileSubject(t)
		st := steps{t, s, id{"tool", "k"}}
		st.claims(testClaim("a"), verdictRun)
		f := s.store.(*file)
		err := f.update(t.Context(), func(tx *tx) error {
			return tx.bucket.Put([]byte(st.id.String()), []byte("\x01\x00garbage!{"))
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := s.claim(t.Context(), st.id, testClaim("b")); !errors.Is(err, ErrStoreUnavailable) || !errors.Is(err, errUnreadable) {
			t.Errorf("claimed: %v", err)
		}
		n := 0
		err = s.list(t.Context(), "tool", func(key string, r *record) bool {
			if n++; key != "k" || r.Error.Code != CodeUnreadable {
				t.Errorf("%s %+v", key, r)
			}
			return true
		})
		if err != nil || n != 1 {
			t.Errorf("listed %d, %v", n, err)
		}
		if found, flushed, err := s.flush(t.Context(), st.id); !found || !flushed || err != nil {
			t.Errorf("flushed: %v %v %v", found, flushed, err)
		}
		st.claims(testClaim("b"), verdictRun)
	})
}

// damagePages has each page of a file be another, or missing: it is told, or no record
// is lost.
func damagePages(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.db")
	f, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const records = 40
	for n := range records {
		i := id{"tool", fmt.Sprintf("%s-%d", strings.Repeat("k", 400), n)}
		if _, _, v, err := f.claim(t.Context(), i, testClaim("a")); err != nil || v != verdictRun {
			t.Fatal(v, err)
		}
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	told := map[string]int{}
	try := func(what string, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := openFile(path)
		if err != nil {
			told[what]++
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move it away") {
				t.Errorf("%s: %v", what, err)
			}
			return
		}
		defer f.close()
		n := 0
		err = f.list(t.Context(), "tool", func(string, *record) bool { n++; return true })
		if err == nil && n != records {
			t.Errorf("%s: %d records of %d are left, and nothing was told", what, n, records)
		}
	}
	for at := 2 * page; at < len(good); at += page { // before are the two heads
		for what, fill := range map[string]byte{"zeros": 0, "ones": 0xff, "text": 'x'} {
			b := bytes.Clone(good)
			copy(b[at:], bytes.Repeat([]byte{fill}, page))
			try(what, b)
		}
		try("cut off", good[:at])
	}
	for _, what := range []string{"zeros", "ones", "text", "cut off"} {
		if told[what] == 0 {
			t.Errorf("%s: it was never told", what)
		}
	}
}

// The sweep removes expired records, but none of running calls.
func TestFileSweep(t *testing.T) {
	s := fileSubject(t)
	f := s.store.(*file)
	for _, key := range []string{"a", "b", "c", "d"} {
		st := steps{t, s, id{"tool", key}}
		st.claims(testClaim("o"), verdictRun)
		if key == "a" || key == "b" {
			st.ends(success("o", 1), verdictDone)
		}
		if key == "a" {
			st.ages(time.Hour)
		}
	}
	// c runs for longer than its record on disk would be kept for.
	err := f.update(t.Context(), func(tx *tx) error {
		r, err := tx.read("idemp:tool:c")
		if err != nil {
			return err
		}
		r.shift(time.Hour)
		return put(tx.bucket, []byte("idemp:tool:c"), r)
	})
	if err != nil {
		t.Fatal(err)
	}
	if next := f.sweepFrom(nil); next != nil {
		t.Errorf("it goes on at %q", next)
	}
	left := ""
	err = f.view(func(tx *tx) error {
		return tx.bucket.ForEach(func(name, _ []byte) error {
			left += string(name[len("idemp:tool:"):])
			return nil
		})
	})
	if err != nil || left != "bcd" {
		t.Errorf("left are %q, %v", left, err)
	}
}

// Setting the wall clock forward ends no lease.
func TestFileClockIsSetForward(t *testing.T) {
	s := fileSubject(t)
	st := steps{t, s, id{"tool", "k"}}
	st.claims(testClaim("a"), verdictRun)
	f := s.store.(*file)
	err := f.view(func(tx *tx) error {
		tx.now += time.Hour.Milliseconds()
		r, err := tx.read(st.id.String())
		if err == nil && (r.lapsed(tx.now) || r.live(tx.now) == nil) {
			t.Errorf("an hour on it is %+v at %d", r, tx.now)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Writes that wait for a sync are committed together by the next one.
func TestFileGroupsCommits(t *testing.T) {
	s := fileSubject(t)
	f := s.store.(*file)
	before := f.db.Stats().TxStats
	const n = 200
	start := make(chan struct{})
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() {
			<-start
			if _, _, v, err := f.claim(t.Context(), id{"tool", fmt.Sprint(k)}, testClaim("a")); v != verdictRun || err != nil {
				t.Error(v, err)
			}
		})
	}
	close(start)
	wg.Wait()
	after := f.db.Stats().TxStats
	txs := after.GetWrite() - before.GetWrite()
	t.Logf("%d claims, %d writes", n, txs)
	if txs > n { // alone, each has three or more
		t.Errorf("%d claims took %d writes", n, txs)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []record{
		{Status: Pending, Owner: "o", Fence: 1, Payload: "p", TTL: 1000, ClaimedAt: 1, LeaseUntil: 2, ExpiresAt: 3, Rerun: true, Label: "l"},
		{Status: Completed, Result: []byte(`{"a":[1,"<"]}`), Owner: "o", Fence: 2, Payload: "p", TTL: 1000, ClaimedAt: 1, EndedAt: 5, ExpiresAt: 1 << 40},
		{Status: Failed, Error: &Failure{Code: CodeOutcomeUnknown}, Owner: "o", Fence: 9, Payload: "p", Digest: "d", Size: 7, ExpiresAt: 1},
	} {
		b, err := encodeRecord(&r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			if !errors.Is(err, errUnreadable) {
				t.Fatal(err)
			}
			return
		}
		again, err := encodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		r2, err := decodeRecord(again)
		if err != nil {
			t.Fatalf("%q was written as %q: %v", b, again, err)
		}
		if third, err := encodeRecord(r2); err != nil || string(third) != string(again) {
			t.Fatalf("%q, then %q: %v", again, third, err)
		}
		// And what is read can be decided on.
		now := int64(binary.BigEndian.Uint64(b[2:])) - 1
		claim(r, testClaim("a"), now)
		complete(r, success("o", r.Fence), now)
		r.settled(now)
	})
}

func FuzzRedisFields(f *testing.F) {
	f.Add("COMPLETED", `{"a":1}`, "", "1", "99999999999999", "0")
	f.Add("FAILED", "", `{"code":"OUTCOME_UNKNOWN"}`, "2", "5", "1")
	f.Add("RELEASED", "", "", "", "", "")
	f.Add("PENDING", "", "", "-1", "x", "1")
	f.Fuzz(func(t *testing.T, status, result, fail, fence, expires, rerun string) {
		r, err := fromFields(map[string]string{
			"status": status, "result": result, "error": fail, "fence": fence, "expiresAt": expires,
			"rerun": rerun, "owner": "o", "payload": "p", "leaseUntil": expires, "ttl": "1000",
		})
		switch {
		case err != nil && !errors.Is(err, errUnreadable):
			t.Fatal(err)
		case err == nil && r == nil && status != "RELEASED":
			t.Fatal("a record was taken for none")
		case r != nil:
			b, err := encodeRecord(r)
			if err == nil {
				_, err = decodeRecord(b)
			}
			if err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		}
	})
}

// A record that is being completed reads as PENDING until its completion is on
// disk: a call longer than its first lease must not be taken for expired meanwhile.
func TestFileReadWhileEnding(t *testing.T) {
	s := fileSubject(t)
	f := s.store.(*file)
	st := steps{t, s, id{"tool", "k"}}
	st.claims(testClaim("a"), verdictRun)
	name := st.id.String()
	err := f.update(t.Context(), func(tx *tx) error { // the lease on disk is the first one
		r, err := tx.read(name)
		if err != nil {
			return err
		}
		r.LeaseUntil = tx.now - 1
		return put(tx.bucket, []byte(name), r)
	})
	if err != nil {
		t.Fatal(err)
	}
	st.is(Pending, false)
	err = f.update(t.Context(), func(tx *tx) error {
		r, err := tx.read(name)
		if err != nil {
			return err
		}
		next, _, _ := complete(r, success("a", 1), tx.now)
		if err := tx.write(name, next); err != nil {
			return err
		}
		st.is(Pending, false)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	st.is(Completed, false)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.leases) != 0 {
		t.Errorf("leases of what has ended: %v", f.leases)
	}
}
