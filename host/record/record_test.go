package record

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// drafted is the call that a record has of args, with what secret masks.
func drafted(secret string, args ...string) *audit.Call {
	q := &call.Request{Call: &wire.Call{Tool: "t", ExecutionID: "e", Args: args, Token: "bearer-0123456789"}}
	pinned := &call.Pinned{Admitted: call.Admitted{Request: *q}, Tool: &tools.Tool{Name: "t"}, Effective: &identity.Effective{}}
	masker := func(_ *call.Pinned, further ...string) (func(string) string, error) {
		m := mask.New([][]byte{[]byte(secret), []byte(further[0])})
		return func(s string) string { return string(m.Bytes([]byte(s))) }, nil
	}
	_, record := New(q, pinned, nil, identity.Caller{}, "", masker).Record(func(c *audit.Call) *audit.Record { return &audit.Record{Call: c} })
	return record().Call
}

// A record has no secret: neither one of the tool, nor the caller's token, nor what
// looks like one or stands after an option that names one; and not half of one that a
// bound cuts.
func TestRecordsHaveNoSecrets(t *testing.T) {
	const secret = "s3cr3t-of-the-tool"
	for _, args := range [][]string{
		{"x " + secret}, {"bearer-0123456789"}, {"ghp_0123456789012345678901234567890123456789"}, {"https://user:s3cr3t@host/x"}, {"https://s3cr3t@host/x"},
		{"--api-key", "s3cr3t"}, {"--api-key=s3cr3t"}, {"GH_TOKEN=s3cr3t"}, {"https://h/?access_token=s3cr3t"}, {"-H", "Authorization: Bearer s3cr3t"}, {strings.Repeat("x", MaxArg-5) + secret}, {strings.Repeat("x", MaxArg+margin-5) + secret},
	} {
		b, err := json.Marshal(drafted(secret, args...))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"s3cr3t", "s3cr", "bearer-0123", "ghp_01234567"} {
			if strings.Contains(string(b), s) {
				t.Errorf("%.60q is recorded as %.300s", args, b)
			}
		}
	}
	if c := drafted(secret, "push", "origin"); strings.Join(c.Args, " ") != "push origin" || len(c.Reduced) != 0 {
		t.Errorf("what is no secret is recorded as %q, without %q", c.Args, c.Reduced)
	}
}

// A record is bounded whatever its call has, and says what it leaves out.
func TestRecordsAreBounded(t *testing.T) {
	many := make([]string, 20_000)
	for i := range many {
		many[i] = strings.Repeat("ü", 500)
	}
	c := drafted("s3cr3t-of-the-tool", many...)
	b, err := json.Marshal(c)
	if err != nil || len(b) > 2*maxArgs || !utf8.Valid(b) || len(c.Reduced) != 1 || c.Reduced[0] != "args" {
		t.Errorf("%d bytes, without %q, %v", len(b), c.Reduced, err)
	}
}

// FuzzReduce: an object stays one, within its bound, or is left out and that is said.
func FuzzReduce(f *testing.F) {
	f.Add([]byte(`{"a":"x","b":[1,2]}`), 40_000)
	f.Add([]byte(`{"a":{"a":1},"a":2}`), 10)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if json.Valid(b) && len(b) > 2 && b[0] == '{' { // make it large
			b = append([]byte(`{"padding":"`+strings.Repeat("x", min(max(n, 0), 1<<17))+`",`), b[1:]...)
		}
		out, reduced := reduce(b)
		if len(out) > maxJSON || len(out) > 0 && !json.Valid(out) {
			t.Errorf("%d bytes: %.100q", len(out), out)
		}
		if len(out) == 0 && len(b) > 0 && len(reduced) == 0 {
			t.Errorf("%.100q is left out, and nothing says so", b)
		}
	})
}

// BenchmarkNew is what a call waits for of its record: all else is done by the log.
func BenchmarkNew(b *testing.B) {
	q := &call.Request{Call: &wire.Call{Tool: "t", ExecutionID: "e", Args: []string{"some", "words"}, Cwd: "/work"}}
	pinned := &call.Pinned{Admitted: call.Admitted{Request: *q}, Tool: &tools.Tool{Name: "t", Def: &tools.Definition{}}, Effective: &identity.Effective{}}
	decided := call.Undecided(*pinned)
	masker := func(*call.Pinned, ...string) (func(string) string, error) { return nil, nil }
	b.ReportAllocs()
	for b.Loop() {
		s := New(q, pinned, &decided, identity.Caller{}, "digest", masker)
		s.Record(func(c *audit.Call) *audit.Record { return &audit.Record{Call: c} })
	}
}
