package mask

import (
	"bytes"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// A secret in the body of an answer is covered wherever it stands and however the
// body is cut, and the rest stays where it is.
func TestCovering(t *testing.T) {
	const token = "sesame-0123456789-abcdef"
	cover := Covering([][]byte{[]byte("Bearer " + token), []byte(token)})
	for name, text := range map[string]string{
		"at the beginning": token + " and more",
		"at the end":       "it is " + token,
		"in base64":        "it is " + base64.StdEncoding.EncodeToString([]byte("user:"+token)) + ".",
		"twice":            `{"a":"` + token + `","b":"Bearer ` + token + `"}`,
		"far behind":       strings.Repeat("x", 2*wholeMask) + token + strings.Repeat("y", 100),
		"on the border":    strings.Repeat("x", wholeMask-7) + token + strings.Repeat("y", wholeMask),
		"nowhere":          strings.Repeat("nothing of it\n", 10_000),
	} {
		for cut, r := range map[string]io.Reader{
			"whole":        strings.NewReader(text),
			"byte by byte": iotest.OneByteReader(strings.NewReader(text[max(0, len(text)-2000):])),
			"with its end": iotest.DataErrReader(strings.NewReader(text)),
		} {
			want := len(text)
			if cut == "byte by byte" {
				want = min(want, 2000)
			}
			got, err := io.ReadAll(cover(r))
			if err != nil || len(got) != want || bytes.Contains(got, []byte(token)) || bytes.Contains(got, []byte("c2VzYW1l")) || strings.Contains(text, "esa") && cut == "whole" && !bytes.Contains(got, []byte("****")) {
				t.Errorf("%s, %s: %d bytes of %d, %v: %.200q", name, cut, len(got), want, err, got)
			}
			if name == "nowhere" && !strings.HasSuffix(text, string(got)) {
				t.Errorf("%s is changed", cut)
			}
		}
	}
}

// BenchmarkCovering is a body of which most is searched for secrets as they are: a pack
// of git, say.
func BenchmarkCovering(b *testing.B) {
	const token = "sesame-0123456789-abcdef"
	body := make([]byte, 64<<20)
	rand.NewChaCha8([32]byte{}).Read(body)
	cover := Covering([][]byte{[]byte("Bearer " + token), []byte(token)})
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if n, err := io.Copy(io.Discard, cover(bytes.NewReader(body))); n != int64(len(body)) || err != nil {
			b.Fatal(n, err)
		}
	}
}
