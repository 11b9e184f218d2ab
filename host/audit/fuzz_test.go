package audit

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whatever a segment and the head hold, reading them ends, opening them goes on
// after what there is, and what is written then is there.
func FuzzForeignLog(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "audit")
	grow(f, dir, on, 3)
	m := files(f, dir)
	whole, h := m["00000001.log"], m["head"]
	f.Add(whole, h)
	f.Add(whole[:len(whole)-5], h)
	f.Add([]byte(nil), []byte(nil))
	f.Add([]byte("\n\n\x00"), h)
	f.Add([]byte(`{"n":18446744073709551615,"prev":"0000000000000000000000000000000000000000000000000000000000000000","at":"2026-01-01T00:00:00Z","type":"end"}`+"\n"), h)
	f.Fuzz(func(t *testing.T, segment, head []byte) {
		dir := filepath.Join(t.TempDir(), "audit")
		put(t, dir, map[string][]byte{"00000001.log": segment, "head": head})
		_, before := verify(dir, nil)
		if _, err := Calls(dir, Query{Limit: 3}); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir, on, quiet)
		if err != nil {
			t.Fatal(err)
		}
		n, err := l.AddSync(t.Context(), 1, begin(7))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		_, after := verify(dir, nil)
		if before == nil && after != nil && len(segment) > 0 {
			t.Errorf("it held, and was opened, and does not: %v", after)
		}
		found := false
		if err := Read(dir, time.Time{}, func(_ Position, r *Record, _ []byte) bool {
			found = found || r.N == n && r.Call != nil && r.Call.Execution == "execution-7"
			return true
		}); err != nil || !found {
			t.Errorf("record %d is not there: %v", n, err)
		}
		if _, err := os.Stat(headPath(dir)); err != nil {
			t.Error(err)
		}
	})
}

// A line that is taken for a record is one whatever it holds.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"n":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000","at":"2026-01-01T00:00:00Z","type":"end","call":{"execution":"x","identity":{"uid":0},"tool":"git","effect":"allow"},"end":{"status":"success","exit_code":0,"duration_ms":1}}`))
	f.Add([]byte(`{"n":1,"prev":"","type":"x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := decode(line)
		if err == nil && (r.N == 0 || r.Type == "") {
			t.Errorf("%+v", r)
		}
		if h, err := decodeHead(line); err == nil && h == nil {
			t.Error("no head and no error")
		}
	})
}
