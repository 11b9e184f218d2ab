package argv

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var testFlags = []Flag{
	{Names: "-v --verbose"},
	{Names: "-q --quiet", Once: true},
	{Names: "-o --output", Value: Path},
	{Names: "-n --max-count", Value: Int(0, 1000)},
	{Names: "--color", Value: OneOf("always", "never"), Optional: true},
	{Names: "-M", Value: Int(0, 100), Optional: true},
	{Names: "--edit", Negatable: true},
	{Names: "-m --message", Value: Text},
	{Names: "--upload-pack", Refuse: "runs a command", Instead: "leave it out"},
	{Names: "-x", Refuse: "runs a command"},
	{Names: Number, Value: Int(0, 1000)},
}

var scope = Scope{Cwd: "/w/a", Roots: []string{"/w"}}

func grammar(s Style) *Grammar { return New(s, testFlags) }

func TestParse(t *testing.T) {
	gnu, pflag, curl, git := Style{}, Style{ShortEquals: true}, Style{NoEquals: true}, Style{EndOfFlags: "--end-of-options"}
	tests := []struct {
		name  string
		style Style
		args  string // separated by one space; "" between two is an empty argument
		want  string // as written anew
		rule  string // or refused by
		arg   string
	}{
		{"nothing", gnu, "", "", "", ""},
		{"flags come first", gnu, "a -v b", "--verbose -- a b", "", ""},
		{"canonical spelling", gnu, "-o out", "--output=out", "", ""},
		{"joined short", gnu, "-oout", "--output=out", "", ""},
		{"short value keeps its equals sign", gnu, "-m=x", "--message==x", "", ""},
		{"pflag drops it", pflag, "-m=x", "--message=x", "", ""},
		{"pflag clusters after an optional value", pflag, "-Mv -M=9", "-M --verbose -M=9", "", ""},
		{"pflag with nothing after it", pflag, "-m=", "", "flag.value", "-m"},
		{"joined long", gnu, "--output=out", "--output=out", "", ""},
		{"empty joined value", gnu, "--message=", "--message=", "", ""},
		{"an end of the flags is left out", git, "-v --end-of-options a - -- -b", "--verbose -- a - -b", "", ""},
		{"what follows it is no flag", git, "--end-of-options a -v", "", "arg.dash", "-v"},
		{"it is a value where one is missing", git, "-o --end-of-options a", "--output=./--end-of-options -- a", "", ""},
		{"no end of the flags to other programs", gnu, "--end-of-options", "", "flag.unknown", "--end-of-options"},
		{"no equals in curl", curl, "--output=out", "", "flag.unknown", "--output=out"},
		{"curl writes two arguments", curl, "-oout", "--output out", "", ""},
		{"cluster", gnu, "-vqn5", "--verbose --quiet --max-count=5", "", ""},
		{"cluster ends in a separate value", gnu, "-vn 5", "--verbose --max-count=5", "", ""},
		{"a value that looks like a flag stays a value", gnu, "-m --upload-pack=sh", "--message=--upload-pack=sh", "", ""},
		{"optional joined", gnu, "--color=always x", "--color=always -- x", "", ""},
		{"optional takes no second argument", gnu, "--color always", "--color -- always", "", ""},
		{"optional short", gnu, "-M90 -M", "-M90 -M", "", ""},
		{"negated", gnu, "--no-edit --edit", "--no-edit --edit", "", ""},
		{"negated with value", gnu, "--no-edit=x", "", "flag.value", "--no-edit"},
		{"not negatable", gnu, "--no-verbose", "", "flag.unknown", "--no-verbose"},
		{"dashes", gnu, "-v -- -x --upload-pack", "--verbose -- -x --upload-pack", "", ""},
		{"dashes alone are kept", gnu, "-v --", "--verbose --", "", ""},
		{"second dashes are an operand", gnu, "-- -- a", "-- -- a", "", ""},
		{"a dash is an operand", gnu, "- -v", "--verbose -- -", "", ""},
		{"dashes that mean nothing", Style{NoDashes: true}, "-- a", "", "arg.dashes", "--"},
		{"no dashes are written", Style{NoDashes: true}, "a -v", "--verbose a", "", ""},
		{"flags end at an operand", Style{OperandsEndFlags: true}, "-v a -x", "--verbose -- a -x", "", ""},
		{"and cannot be written without dashes", Style{OperandsEndFlags: true, NoDashes: true}, "a -x", "", "arg.dash", "-x"},
		{"numbers", Style{Numbers: true}, "-5 -12", "-5 -12", "", ""},
		{"number out of range", Style{Numbers: true}, "-5000", "", "flag.value", "-5000"},
		{"numbers by name", Style{Numbers: true}, "-NUM", "", "flag.unknown", "-N"},
		{"no numbers", gnu, "-5", "", "flag.unknown", "-5"},
		{"unknown long", gnu, "--frobnicate=1", "", "flag.unknown", "--frobnicate"},
		{"unknown short in a cluster", gnu, "-vz", "", "flag.unknown", "-z"},
		{"no clusters", Style{NoCluster: true}, "-vq", "", "flag.unknown", "-vq"},
		{"nor joined values", Style{NoCluster: true}, "-n5", "", "flag.unknown", "-n5"},
		{"but with an equals sign", Style{NoCluster: true, ShortEquals: true}, "-n=5", "--max-count=5", "", ""},
		{"abbreviation", gnu, "--outp=x", "", "flag.abbreviated", "--outp"},
		{"abbreviation of a refused flag", gnu, "--upload=x", "", "flag.unknown", "--upload"},
		{"other case", gnu, "--Verbose", "", "flag.unknown", "--Verbose"},
		{"refused", gnu, "--upload-pack=sh", "", "flag.refused", "--upload-pack"},
		{"refused in a cluster", gnu, "-vx", "", "flag.refused", "-x"},
		{"missing value", gnu, "-v --message", "", "flag.value", "--message"},
		{"missing value in a cluster", gnu, "-vm", "", "flag.value", "-m"},
		{"unwanted value", gnu, "--verbose=1", "", "flag.value", "--verbose"},
		{"wrong value", gnu, "--color=sometimes", "", "flag.value", "--color"},
		{"wrong number", gnu, "-n 05", "", "flag.value", "-n"},
		{"plus sign", gnu, "-n +5", "", "flag.value", "-n"},
		{"twice", gnu, "-q --quiet", "", "flag.twice", "--quiet"},
		{"outside", gnu, "-o ../../etc/passwd", "", "path.outside", "-o"},
		{"absolute outside", gnu, "--output=/etc/passwd", "", "path.outside", "--output"},
		{"sibling of a root", gnu, "-o /w2/x", "", "path.outside", "-o"},
		{"other folder of the root", gnu, "-o ../b/x", "--output=../b/x", "", ""},
		{"dots are resolved by name", gnu, "-o link/../x", "--output=x", "", ""},
		{"empty path", gnu, "--output=", "", "path.empty", "--output"},
		{"path like a flag", gnu, "-o -x", "--output=./-x", "", ""},
		{"NUL", gnu, "a\x00b", "", "arg.nul", "a\x00b"},
		{"NUL after dashes", gnu, "-- a\x00b", "", "arg.nul", "a\x00b"},
		{"bytes beyond ASCII", gnu, "-é", "", "flag.unknown", "-\xc3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var args []string
			if tt.args != "" {
				args = strings.Split(tt.args, " ")
			}
			line, err := grammar(tt.style).Parse(args, scope)
			if tt.rule != "" {
				var r *Refusal
				if !errors.As(err, &r) {
					t.Fatalf("Parse(%q) = %q, want a refusal by %s", args, line.Args(), tt.rule)
				}
				if r.Rule != tt.rule || r.Arg != tt.arg {
					t.Errorf("refused by %s for %q, want %s for %q", r.Rule, r.Arg, tt.rule, tt.arg)
				}
				if r.Reason == "" {
					t.Error("no reason")
				}
				return
			}
			if err != nil {
				t.Fatalf("Parse(%q): %v", args, err)
			}
			if got := strings.Join(line.Args(), " "); got != tt.want {
				t.Errorf("written %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLineAnswers(t *testing.T) {
	line, err := grammar(Style{}).Parse(strings.Fields("-m one --edit file --message=two --no-edit -- last"), scope)
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := line.Get("--message"); !ok || v != "two" {
		t.Errorf("Get = %q, %v", v, ok)
	}
	if got := line.Values("--message"); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("Values = %q", got)
	}
	if line.Has("--edit") {
		t.Error("--edit was negated last")
	}
	if got := line.Operands(); !slices.Equal(got, []string{"file", "last"}) {
		t.Errorf("Operands = %q", got)
	}
	if !line.Dashes || !line.Items[len(line.Items)-1].Dashed {
		t.Error("the dashes are forgotten")
	}
}

func TestNewRefusesFaultyGrammars(t *testing.T) {
	for name, flags := range map[string][]Flag{
		"no name":    {{}},
		"not a flag": {{Names: "verbose"}},
		"dashes":     {{Names: "--"}},
		"equals":     {{Names: "--a=b"}},
		"twice":      {{Names: "-a --all"}, {Names: "-a --any"}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("New did not panic")
				}
			}()
			New(Style{}, flags)
		})
	}
}

func TestPathWithoutRoots(t *testing.T) {
	for _, tt := range []struct {
		in   Scope
		path string
		ok   bool
	}{
		{Scope{Cwd: "/w"}, "x", true},
		{Scope{Cwd: "/w"}, "/x", false},
		{Scope{}, "x", false},
		{Scope{}, "/x", false},
		{Scope{Cwd: "w", Roots: []string{"w"}}, "x", false},
		{Scope{Cwd: "/w", Roots: []string{"/"}}, "/etc/passwd", true},
		{Scope{Cwd: "/w", Roots: []string{""}}, "x", false},
	} {
		if _, err := tt.in.Path(tt.path); (err == nil) != tt.ok {
			t.Errorf("%+v.Path(%q): %v", tt.in, tt.path, err)
		}
	}
}

// FuzzParse: Parse ends with a line or a refusal, and a line holds what its
// package comment promises.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "-v\x1fa", "-vqn5", "--color=always\x1fx", "-M90", "-m\x1f--output=x", "--\x1f-x", "--no-edit", "-5", "-o\x1f../x", "-m==x", "--outp=x"} {
		for style := range byte(64) {
			f.Add(seed, style)
		}
	}
	f.Fuzz(func(t *testing.T, joined string, style byte) {
		s := Style{NoEquals: style&1 != 0, ShortEquals: style&2 != 0, NoCluster: style&4 != 0, OperandsEndFlags: style&8 != 0, NoDashes: style&16 != 0, Numbers: style&32 != 0}
		g := grammar(s)
		args := strings.Split(joined, "\x1f")
		line, err := g.Parse(args, scope)
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Rule == "" || r.Reason == "" || line != nil {
				t.Fatalf("Parse(%q): %#v", args, err)
			}
			return
		}
		for _, it := range line.Items {
			if strings.IndexByte(it.Value, 0) >= 0 {
				t.Fatalf("Parse(%q): NUL in %+v", args, it)
			}
			if it.Flag == nil {
				continue
			}
			if it.Flag.Refuse != "" || g.Lookup(it.Name) != it.Flag {
				t.Fatalf("Parse(%q): %+v is not of the grammar", args, it)
			}
			if it.HasValue {
				if _, err := it.Flag.Value(it.Value, scope); err != nil {
					t.Fatalf("Parse(%q): %+v: %v", args, it, err)
				}
			}
		}
		written := line.Args()
		again, err := g.Parse(written, scope)
		if err != nil {
			t.Fatalf("Parse(%q) wrote %q, which it refuses: %v", args, written, err)
		}
		if !slices.Equal(again.Args(), written) || !reflect.DeepEqual(flagsOf(again), flagsOf(line)) || !slices.Equal(again.Operands(), line.Operands()) {
			t.Fatalf("Parse(%q) wrote %q, which reads as %q", args, written, again.Args())
		}
	})
}

func flagsOf(l *Line) []Item {
	var out []Item
	for _, it := range l.Items {
		if it.Flag != nil {
			out = append(out, it)
		}
	}
	return out
}
