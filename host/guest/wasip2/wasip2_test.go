package wasip2

import (
	"strings"
	"testing"

	"github.com/toold/toold/host/guest/component"
)

// A function is linked by its whole type, and by a version that is of WASI 0.2.
func TestLink(t *testing.T) {
	u64, u32 := component.Primitive(component.U64), component.Primitive(component.U32)
	code := &component.Type{Kind: component.Enum, Fields: []component.Field{{Name: "unknown"}, {Name: "access-denied"}}}
	code.Layout()
	fails := &component.Type{Kind: component.Result, Fields: []component.Field{{Name: "ok"}, {Name: "error", Type: code}}}
	fails.Layout()
	table := Table()
	for _, tt := range []struct {
		iface, name string
		result      *component.Type
		says        string
	}{
		{"wasi:clocks/monotonic-clock@0.2.0", "now", u64, ""},
		{"wasi:clocks/monotonic-clock@0.2.99", "now", u64, ""},
		{"wasi:clocks/monotonic-clock@0.2.0", "now", u32, "func() -> u32, but it is func() -> u64"},
		{"wasi:clocks/monotonic-clock@0.3.0", "now", u64, "another version"},
		{"wasi:clocks/monotonic-clock", "now", u64, "another version"},
		{"wasi:clocks/monotonic-clock@0.2.0", "later", u64, "does not have"},
		{"local:store/store@0.2.0", "now", u64, "does not have"},
		{"wasi:sockets/tcp@0.2.0", "[method]tcp-socket.start-bind", fails, ""},
		{"wasi:sockets/tcp@0.2.0", "[method]tcp-socket.is-listening", u32, ""},
	} {
		f := &component.Func{Interface: tt.iface, Name: tt.name, Type: &component.FuncType{Result: tt.result}}
		link, err := Link(table, f)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", f, err, tt.says)
		}
		if err != nil || !strings.HasPrefix(tt.iface, "wasi:sockets") {
			continue
		}
		denied, trapped := func() (v any, trapped bool) {
			defer func() { trapped = recover() != nil }()
			return link.Do(&State{}, nil), false
		}()
		if c, ok := denied.(component.Case); tt.result == fails && (!ok || c.Index != 1 || c.Value.(component.Case).Index != 1) || (tt.result == u32) != trapped {
			t.Errorf("%s answers %v, traps: %v", f, denied, trapped)
		}
	}
}

// Every type of the table is written out, and no function is there twice.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Table() {
		key := f.Interface + "#" + f.Name
		if seen[key] || !strings.HasPrefix(f.Type, "func(") {
			t.Errorf("%s: %s", key, f.Type)
		}
		seen[key] = true
		if strings.Contains(f.Type, "stream-error") && !strings.Contains(f.Type, "last-operation-failed") {
			t.Errorf("%s: %s", key, f.Type)
		}
	}
}
