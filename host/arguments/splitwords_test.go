package arguments

import (
	"strings"
	"testing"
)

func TestSplitWords(t *testing.T) {
	for _, tt := range []struct {
		line string
		want string // joined with |, or the beginning of the error
	}{
		{"", ""},
		{"  git   log\t-1 ", "git|log|-1"},
		{`a 'b c' "d e" f\ g`, "a|b c|d e|f g"},
		{`a '' ""`, "a||"},
		{`x'y'"z"`, "xyz"},
		{`'$HOME' "$HOME" $HOME *.go ~`, "$HOME|$HOME|$HOME|*.go|~"},
		{`"a\"b\\c\$d\e"`, `a"b\c$d\e`},
		{`'a\'`, `a\`},
		{"a\\\nb", "ab"},
		{"\n git status \n", "git|status"},
		{"a#b", "a#b"},
		{"'a|b' c\\;d", "a|b|c;d"},
		{"git log | head", "!'|' at byte 8 would need a shell"},
		{"a && b", "!'&'"},
		{"a > b", "!'>'"},
		{"a; b", "!';'"},
		{"$(a)", "!'('"},
		{"a # b", "!'#'"},
		{"git status\nrm -r", "!has a second line"},
		{"a 'b", "!the quote ' at byte 2"},
		{`a "b`, `!the quote " at byte 2`},
		{`a \`, "!ends in a backslash"},
	} {
		words, err := SplitWords(tt.line)
		got := strings.Join(words, "|")
		if err != nil {
			got = "!" + err.Error()
		}
		if want, isErr := strings.CutPrefix(tt.want, "!"); got != tt.want && !(isErr && err != nil && strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%q: %q, must be %q", tt.line, got, tt.want)
		}
	}
}

func FuzzSplitWords(f *testing.F) {
	f.Add(`a 'b c' "d\"e" f\ g`)
	f.Fuzz(func(t *testing.T, line string) {
		words, err := SplitWords(line)
		if err != nil {
			return
		}
		// Quoting and splitting again gives the same words.
		for i, w := range words {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		again, err := SplitWords(strings.Join(words, " "))
		if err != nil || len(again) != len(words) {
			t.Fatalf("%q, %v", again, err)
		}
	})
}
