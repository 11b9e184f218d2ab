package record

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toold/toold/host/mask"
)

// hidden is HideShapes without its checks.
func hidden(t string) string {
	t = shapes.ReplaceAllString(t, mask.Placeholder)
	t = urlSecret.ReplaceAllStringFunc(t, func(m string) string {
		scheme, rest, _ := strings.Cut(m, "://")
		if user, _, named := strings.Cut(rest, ":"); named && !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
			return scheme + "://" + user + ":" + mask.Placeholder + "@"
		}
		return scheme + "://" + mask.Placeholder + "@"
	})
	t = headerSecret.ReplaceAllString(t, "${1}${2}"+mask.Placeholder)
	return assignment.ReplaceAllString(t, "${1}"+mask.Placeholder)
}

// FuzzShapes: the checks in front of the patterns miss nothing, whatever a text's case,
// spaces and escapes.
func FuzzShapes(f *testing.F) {
	for _, s := range []string{
		"aUTHorization: x", "x-api-\u212aey:x", "X-API-KEY\t=\r\ny", "cookie \n:\n", "https://a@b", "FTP://a:b@c", "httpſ://a@b", "ghp_01234567890123456789",
		"eyJ012345678.a.b", "xoxb-0123456789", "AKIA0123456789ABCDEF", "private-token=:", "a:b=authorization=c", "toKen", "\u017fecret", "api_\u212aEY", "Passwd", `\u0067hp_0123`, "--api_\u212aey=x", "a;TOKEN=b", "secret=a token=b", "pass", "db_pass", "--pass=x", "bypass=x", "a pass=x", "?x&passwd=1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := HideShapes(s), hidden(s); got != want {
			t.Errorf("%q is shown as %q, and not %q", s, got, want)
		}
		if got, want := IsSecretName(s), secretName.MatchString(s); got != want {
			t.Errorf("IsSecretName(%q) is %v", s, got)
		}
		b, err := json.Marshal(map[string]string{"a": s})
		if err != nil {
			t.Fatal(err)
		}
		if holdsNone(b) && json.Valid(b) && (hidden(s) != s || secretName.MatchString(s)) {
			t.Errorf("nothing is found in %s", b)
		}
	})
}

// A secret in a payload is masked however its text is written.
func TestShapesInJSON(t *testing.T) {
	d := &Draft{}
	for _, b := range []string{
		`{"a":"ghp_0123456789s3cr3t0123456789"}`, `{"a":"\u0067hp_0123456789s3cr3t0123456789"}`, `{"PassWord":"s3cr3t"}`, `{"pass\u0077ord":"s3cr3t"}`, `{"aPI_kEy":"s3cr3t"}`,
		`{"a":["--tOKen","s3cr3t"]}`, `{"passwords":["s3cr3t","other s3cr3t"]}`, `{"tokens":[["x"],["s3cr3t"]]}`, `{"pass":"s3cr3t"}`, `{"key-passphrase":"s3cr3t"}`, `{"a":"--password=s3cr3t"}`, `{"a":"CooKie: s3cr3t"}`, `{"a":"AuthOrization = s3cr3t"}`, `{"a":"X://:s3cr3t@h"}`, "{\"\u017fecret\":\"s3cr3t\"}",
	} {
		if out, masked := d.HideJSON([]byte(b)); !masked || strings.Contains(string(out), "s3cr3t") {
			t.Errorf("%s is recorded as %s", b, out)
		}
	}
}

// What is assigned to the name of a secret is masked, and nothing that a shell would run.
func TestAssignments(t *testing.T) {
	for text, want := range map[string]string{
		"--password=s3cr3t": "--password=[secret]", "PASSWORD=s3cr3t": "PASSWORD=[secret]", "-Dapi.x=1 GH_TOKEN=s3cr3t make": "-Dapi.x=1 GH_TOKEN=[secret] make",
		"https://h/?a=b&access_token=s3cr3t&c=d": "https://h/?a=b&access_token=[secret]&c=d", "--api-key=s3cr3t --verbose": "--api-key=[secret] --verbose",
		"TOKEN=$(rm -rf x) y": "TOKEN=$(rm -rf x) y", "TOKEN=a`rm x`": "TOKEN=[secret]`rm x`", "TOKEN=a;rm x": "TOKEN=[secret];rm x",
		"credential.helper=!evil": "credential.helper=!evil", "--token": "--token", "a=b": "a=b", "--pass=s3cr3t": "--pass=[secret]", "KEY_PASSPHRASE=s3cr3t": "KEY_PASSPHRASE=[secret]", "bypass=yes": "bypass=yes", "--max=tokens": "--max=tokens",
	} {
		if got := HideShapes(text); got != want {
			t.Errorf("%s is shown as %s, not as %s", text, got, want)
		}
	}
}

// BenchmarkHideShapes hides in the arguments that git's policy adds.
func BenchmarkHideShapes(b *testing.B) {
	args := []string{"-c", "core.fsmonitor=false", "-c", "gpg.openpgp.program=/dev/null", "-c", "safe.directory=/srv/toold/workspace/app", "push", "https://git.example.com/app.git"}
	for b.Loop() {
		for _, a := range args {
			HideShapes(a)
		}
	}
}
