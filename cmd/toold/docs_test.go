package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestDocumentedFlags compares the table of docs/operating.md with --help: the
// same flags, with the same variables.
func TestDocumentedFlags(t *testing.T) {
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &help, &help); code != 0 {
		t.Fatalf("--help: code %d", code)
	}
	find := func(re string, text []byte) []string {
		var out []string
		for _, m := range regexp.MustCompile(re).FindAllSubmatch(text, -1) {
			out = append(out, string(m[1])+" "+string(m[2]))
		}
		slices.Sort(out)
		return out
	}
	documented := find("(?m)^\\| `(--[a-z-]+)[^|]*\\| `([A-Z_]+)`", text)
	real := find(`(?m)^  (--[a-z-]+) .*\(([A-Z_]+)[;)]`, help.Bytes())
	if len(real) == 0 || !slices.Equal(documented, real) {
		t.Errorf("docs/operating.md has\n%q\ntoold --help has\n%q", documented, real)
	}
}
