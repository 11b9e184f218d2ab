package pipeline

import (
	"strings"
	"testing"
)

func TestIntersect(t *testing.T) {
	for _, tt := range []struct{ a, b, want string }{
		{"/w", "/w/x", "/w/x"},
		{"/w/x", "/w", "/w/x"},
		{"/w", "/wx", ""},
		{"/a,/b", "/b/c,/a,/d", "/a,/b/c"},
	} {
		got := strings.Join(intersect(strings.Split(tt.a, ","), strings.Split(tt.b, ",")), ",")
		if got != tt.want {
			t.Errorf("%s and %s: %q, want %q", tt.a, tt.b, got, tt.want)
		}
	}
}
