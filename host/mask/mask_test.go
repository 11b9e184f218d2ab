package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// inPieces is what is shown of text that is written to one stream in pieces of
// n bytes.
func inPieces(t testing.TB, text string, n int, secrets ...[]byte) string {
	t.Helper()
	var got bytes.Buffer
	w, _ := Output(&got, io.Discard, secrets)
	for b := range slices.Chunk([]byte(text), n) {
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return got.String()
}

func TestMaskCutAnywhere(t *testing.T) {
	const text = "a token s3cr3t-token and s3cr3t-, 3t-token; then s3cr3t-token-long."
	want := "a token [secret] and s3cr3t-, 3t-token; then [secret]."
	for n := 1; n <= len(text); n++ {
		if s := inPieces(t, text, n, []byte("s3cr3t-token"), []byte("s3cr3t-token-lo\n"), []byte("no"), []byte("s3cr3t-token-long")); n > 3 && s != want && !strings.Contains(s, "then [secret].") || strings.Contains(s, "s3cr3t-token") {
			t.Fatalf("in pieces of %d: %q, want %q", n, s, want)
		}
	}
	for n := 1; n <= len(text); n++ {
		if s := inPieces(t, text, n, []byte("s3cr3t-token"), []byte("s3cr3t-token-l")); s != "a token [secret] and s3cr3t-, 3t-token; then [secret]ong." {
			t.Fatalf("in pieces of %d: %q", n, s)
		}
	}
}

func TestMaskHoldsNoPrompt(t *testing.T) {
	var got bytes.Buffer
	w, _ := Output(&got, io.Discard, [][]byte{[]byte("s3cr3t-token")})
	io.WriteString(w, "name? ")
	if got.String() != "name? " {
		t.Errorf("a prompt is held back: %q", got.String())
	}
	io.WriteString(w, "his")
	w.Close()
	if got.String() != "name? his" {
		t.Errorf("a byte with which a secret begins is lost: %q", got.String())
	}
}

// written are the ways in which a secret may come back.
var written = map[string]func(string) string{
	"as it is":      func(s string) string { return s },
	"percent":       url.QueryEscape,
	"percent lower": func(s string) string { return lowerEscapes(url.QueryEscape(s)) },
	"path":          url.PathEscape,
	"all percent":   func(s string) string { return each(s, "%%%02X") },
	"some percent":  func(s string) string { return each(s[:len(s)/2], "%%%02x") + s[len(s)/2:] },
	"JSON":          func(s string) string { b, _ := json.Marshal(s); return string(b[1 : len(b)-1]) },
	"JSON slashes":  func(s string) string { return strings.ReplaceAll(s, "/", `\/`) },
	"JSON all":      func(s string) string { return jsonAll(s) },
	"JSON in JSON": func(s string) string {
		b, _ := json.Marshal(s)
		b, _ = json.Marshal(string(b))
		return string(b[3 : len(b)-3])
	},
	"HTML":           html.EscapeString,
	"HTML all":       func(s string) string { return each(s, "&#%d;") },
	"hex":            func(s string) string { return hex.EncodeToString([]byte(s)) },
	"HEX":            func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	"UTF-16":         func(s string) string { return utf16Text(s) },
	"base64":         func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"base64 1":       func(s string) string { return base64.StdEncoding.EncodeToString([]byte("u" + s)) },
	"base64 2":       func(s string) string { return base64.StdEncoding.EncodeToString([]byte("us" + s)) },
	"base64 inside":  func(s string) string { return base64.StdEncoding.EncodeToString([]byte("user:" + s + ", and more")) },
	"base64 URL":     func(s string) string { return base64.URLEncoding.EncodeToString([]byte("u" + s + "?")) },
	"base64 bare":    func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("us" + s)) },
	"base64 percent": func(s string) string { return url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("u" + s))) },
	"base64 JSON": func(s string) string {
		return strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("u"+s)), "/", `\/`)
	},
}

func each(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

func jsonAll(s string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		fmt.Fprintf(&b, `\u%04X`, u)
	}
	return b.String()
}

func utf16Text(s string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return string(b)
}

func lowerEscapes(s string) string {
	for i := 0; i+2 < len(s); i++ {
		if s[i] == '%' {
			s = s[:i] + strings.ToLower(s[i:i+3]) + s[i+3:]
		}
	}
	return s
}

// Nothing of a secret is shown in any of the ways in which it may come back, and
// however the writes cut it.
func TestMaskEncodings(t *testing.T) {
	for _, secret := range []string{"ghp_0123456789abcdefABCDEF", `p/w+d "x\y" & <z>?~`, "short1", "hunter2 or so", "sk/é€𝄞+key=="} {
		for name, write := range written {
			if name == "HTML all" && strings.ContainsFunc(secret, func(r rune) bool { return r > 0x7f }) {
				continue // bytes of UTF-8 are no characters
			}
			if name == "UTF-16" && strings.Contains(secret, "é") {
				continue // only of ASCII
			}
			out := write(secret)
			for n := 1; n <= len(out)+2; n++ {
				got := inPieces(t, "<"+out+">", n, []byte(secret))
				if !strings.Contains(got, "[secret]") || strings.Contains(got, out) {
					t.Fatalf("%s of %q in pieces of %d: %q", name, secret, n, got)
				}
			}
			if !strings.HasPrefix(name, "base64") {
				if got := inPieces(t, "<"+out+">", 3, []byte(secret)); strings.Trim(got, "\x00") != "<[secret]>" && name != "UTF-16" {
					t.Errorf("%s of %q: %q", name, secret, got)
				}
			}
		}
	}
}

// A secret that is cut once, by the end of what writes it or between the two
// streams, shows in neither part.
func TestMaskCutSecret(t *testing.T) {
	const secret = "ghp_0123456789abcdefABCDEFXYZ0987654321"
	for cut := 1; cut < len(secret); cut++ {
		head, tail := secret[:cut], secret[cut:]
		var out, errs bytes.Buffer
		stdout, stderr := Output(&out, &errs, [][]byte{[]byte(secret)})
		io.WriteString(stdout, "x"+head)
		io.WriteString(stderr, tail+"\n")
		io.WriteString(stdout, "\n")
		stdout.Close()
		stderr.Close()
		if out.String() != "x[secret]\n" || errs.String() != "[secret]\n" {
			t.Fatalf("cut at %d between the streams: %q, %q", cut, out.String(), errs.String())
		}
		got := inPieces(t, "x"+head, 5, []byte(secret))
		if want := "x[secret]"; cut >= shortestPart && got != want || cut < shortestPart && got != "x"+head {
			t.Fatalf("ended after %d: %q", cut, got)
		}
		// In the other order, or with something between, a third may be shown.
		if got := inPieces(t, "x"+tail+"\n", 5, []byte(secret)); len(tail) >= len(secret)/3+1 && got != "x[secret]\n" {
			t.Fatalf("the rest from %d: %q", cut, got)
		}
	}
	// Byte by byte on both streams, as long as they are read in that order.
	var out, errs bytes.Buffer
	stdout, stderr := Output(&out, &errs, [][]byte{[]byte(secret)})
	for i := range len(secret) {
		w := stdout
		if i%2 == 1 {
			w = stderr
		}
		io.WriteString(w, secret[i:i+1])
	}
	stdout.Close()
	stderr.Close()
	if out.String() != "[secret]" || errs.String() != "[secret]" {
		t.Errorf("alternately: %q, %q", out.String(), errs.String())
	}
}

// What is no secret is shown as it is, and the parts that look like one.
func TestMaskKeepsTheRest(t *testing.T) {
	secret := []byte("https://user:p4ssw0rd-0123456789@db.example")
	text := "GET https://example.org/a%20b?c=d%2Fe&f=g \"q\\\"\\u00e9\" 50%\n\x00\x01\xff&amp; \\ & %"
	for n := 1; n <= len(text); n++ {
		if got := inPieces(t, text, n, secret, []byte("t0ken-of-s0mebody")); got != text {
			t.Fatalf("in pieces of %d: %q", n, got)
		}
	}
}

// FuzzMask: whatever is around a secret and wherever the writes cut it, it is not
// shown in any way in which it was written; and text without one is kept.
func FuzzMask(f *testing.F) {
	ways := make([]string, 0, len(written))
	for name := range written {
		ways = append(ways, name)
	}
	slices.Sort(ways)
	for i := range ways {
		f.Add("s3cr3t+token/of=somebody", "before ", " after", []byte{byte(i), 3, 1, 4, 1, 5})
	}
	f.Add("aaaaaabaaaaaab", "aaaaaa", "aaab", []byte{0, 1, 2})
	f.Add("%41%41%41", "%", "41", []byte{4, 1})
	f.Fuzz(func(t *testing.T, secret, before, after string, cuts []byte) {
		if len(bytes.TrimSpace([]byte(secret))) < shortestSecret || len(cuts) == 0 || len(secret) > 200 || strings.Contains(Placeholder, secret) || strings.Contains(secret, "secret") {
			return
		}
		secret = string(bytes.TrimSpace([]byte(secret)))
		way := ways[int(cuts[0])%len(ways)]
		if strings.HasPrefix(way, "UTF") || strings.HasPrefix(way, "JSON") || way == "HTML all" {
			for _, r := range secret {
				if r >= 0x80 || r == 0 {
					return
				}
			}
		}
		if way == "some percent" && strings.Contains(secret, "%") || (way == "JSON slashes" || way == "JSON in JSON") && strings.Contains(secret, `\`) {
			return // whoever escapes anything escapes that
		}
		out := written[way](secret)
		text := before + out + after
		streams := [2]bytes.Buffer{}
		stdout, stderr := Output(&streams[0], &streams[1], [][]byte{[]byte(secret)})
		rest := []byte(text)
		for i := 1; len(rest) > 0; i++ {
			n := len(rest)
			if i < len(cuts) {
				n = min(n, int(cuts[i])+1)
			}
			stdout.Write(rest[:n])
			stderr.Write([]byte{'\n'}) // the other stream changes nothing
			rest = rest[n:]
		}
		stdout.Close()
		stderr.Close()
		got := streams[0].String()
		if !strings.HasPrefix(way, "base64") && strings.Contains(got, out) || strings.Contains(got, secret) {
			t.Errorf("%s of %q in %q, cut at %v: %q", way, secret, text, cuts[1:], got)
		}
		before += "\x01"
		if found, _, begun := New([][]byte{[]byte(secret)}).scan([]byte(before)); len(found) == 0 && begun < shortestPart {
			if plain := inPieces(t, before, int(cuts[0])+1, []byte(secret)); plain != before {
				t.Errorf("%q without %q became %q", before, secret, plain)
			}
		}
	})
}

func BenchmarkMask(b *testing.B) {
	text := bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog 0123456789, and so on.\n"), 1000)
	for name, text := range map[string][]byte{"plain": text, "JSON": bytes.ReplaceAll(text, []byte("\n"), []byte(`\n`))} {
		b.Run(name, func(b *testing.B) {
			w, _ := Output(io.Discard, io.Discard, [][]byte{[]byte("ghp_0123456789abcdefABCDEFXYZ0987654321")})
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				w.Write(text)
			}
		})
	}
}
