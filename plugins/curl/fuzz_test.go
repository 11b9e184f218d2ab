package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// paths are the flags of an allowed line that carry a path, with how it
// stands in their value.
var paths = map[string]func(string) (string, bool){
	"--output":      whole,
	"--output-dir":  whole,
	"--dump-header": whole,
	"--cookie-jar":  whole,
	"--etag-save":   whole,
	"--stderr":      whole,
	"--trace":       whole,
	"--trace-ascii": whole,
	"--upload-file": whole,
	"--cacert":      whole,
	"--data":        at,
	"--data-ascii":  at,
	"--data-binary": at,
	"--json":        at,
	"--header":      at,
	"--write-out":   at,
	"--cookie":      func(v string) (string, bool) { return v, v != "" && !strings.Contains(v, "=") },
	"--data-urlencode": func(v string) (string, bool) {
		_, p, ok := strings.Cut(v, "@")
		return p, ok && !strings.Contains(v, "=")
	},
	"--form": func(v string) (string, bool) {
		_, v, _ = strings.Cut(v, "=")
		if v == "" || v[0] != '@' && v[0] != '<' {
			return "", false
		}
		v, _, _ = strings.Cut(v[1:], ";")
		return v, true
	},
}

func whole(v string) (string, bool) { return v, v != "-" && v != "/dev/null" }
func at(v string) (string, bool)    { v, ok := strings.CutPrefix(v, "@"); return v, ok }

// checkAllowed reads an allowed line as curl would and says what is wrong.
func checkAllowed(args []string) string {
	if slices.Equal(args, []string{"-q", "--version"}) || slices.Equal(args, []string{"-q", "--help"}) {
		return ""
	}
	if len(args) < 10 || args[0] != "-q" || args[1] != "--globoff" || args[2] != "--proto" || args[3] != "=http,https" || args[4] != "--proto-redir" {
		return "the pins are not in front"
	}
	i := slices.Index(args, "--noproxy")
	if i < 0 || args[i-2] != "--proxy" || args[i-1] != offHost {
		return "the pin of the hosts is missing"
	}
	hosts := strings.Split(args[i+1], ",")
	rest := args[i+2:]
	scope := argv.Scope{Cwd: "/w/a", Roots: []string{"/w"}}
	for len(rest) > 0 && rest[0] != "--" {
		name := rest[0]
		f := grammar.Lookup(name)
		if f == nil || f.Refuse != "" || f.Canonical() != name || strings.HasPrefix(name, "--pro") && name != "--progress-bar" {
			return "the flag " + name + " is in it"
		}
		rest = rest[1:]
		if f.Value == nil {
			continue
		}
		if len(rest) == 0 {
			return "the flag " + name + " lacks its value"
		}
		v := rest[0]
		rest = rest[1:]
		if strings.IndexByte(v, 0) >= 0 {
			return "a NUL byte"
		}
		if path, ok := paths[name]; ok {
			if p, ok := path(v); ok && p != "-" && !(name == "--upload-file" && p == ".") {
				clean, err := scope.Path(p)
				if err != nil || clean != p {
					return "the path " + p + " of " + name
				}
			}
		}
	}
	if len(rest) < 2 {
		return "no URL"
	}
	for _, u := range rest[1:] {
		scheme, after, _ := strings.Cut(u, "://")
		if scheme != "http" && scheme != "https" {
			return "the URL " + u
		}
		authority := after[:strings.IndexAny(after, "/?#")]
		ok := false
		for _, h := range hosts {
			a := strings.TrimSuffix(strings.TrimPrefix(authority, "["), "]")
			ok = ok || authority == h || a == h || strings.HasPrefix(authority, h+":") || strings.HasPrefix(authority, "["+h+"]:")
		}
		if !ok {
			return "the host of " + u
		}
	}
	return ""
}

// FuzzPolicy: the policy ends with a decision; a denial says why; what is
// allowed holds nothing outside the grammar, no path outside the roots and no
// host that is not named.
func FuzzPolicy(f *testing.F) {
	for _, h := range hostile {
		f.Add(strings.Join(h.args, "\x1f"))
	}
	for _, s := range []string{
		"-sSLo\x1fout\x1fhttps://example.com/x", "-d\x1f@body\x1fhttps://example.com", "-F\x1fa=@b;type=c/d;filename=e\x1fhttps://example.com",
		"--data-urlencode\x1fa@b\x1fexample.com", "-H\x1fA: b\x1fexample.com", "-T\x1f.\x1fexample.com", "-V", "http://[::1]:8080/", "http://x.example.org.",
	} {
		f.Add(s)
	}
	p := testPolicy(f, named)
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x1f")
		d := p.decide(call(args...))
		switch d.Effect {
		case abi.Allow:
			if fault := checkAllowed(d.Args); fault != "" {
				t.Fatalf("%q is allowed as %q: %s", args, d.Args, fault)
			}
			if d.Mutating == nil || d.Stdin == nil {
				t.Fatalf("%q: class or stdin is open", args)
			}
		case abi.Deny:
			if d.Rule == "" || d.Reason == "" || d.Args != nil {
				t.Fatalf("%q: denied without a rule or reason: %+v", args, d)
			}
		default:
			t.Fatalf("%q: effect %q", args, d.Effect)
		}
	})
}

func TestCheckAllowedSeesFaults(t *testing.T) {
	p := testPolicy(t, named)
	good := p.decide(call("-o", "x", "https://example.com")).Args
	if fault := checkAllowed(good); fault != "" {
		t.Fatal(fault)
	}
	for _, bad := range [][2]string{{"x", "/etc/x"}, {"https://example.com/", "https://other.com/"}, {"https://example.com/", "file:///etc/passwd"}, {"--output", "--config"}, {"-q", "-s"}} {
		args := slices.Clone(good)
		args[slices.Index(args, bad[0])] = bad[1]
		if checkAllowed(args) == "" {
			t.Errorf("%q passes", args)
		}
	}
}
