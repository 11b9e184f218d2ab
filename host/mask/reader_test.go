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

// The long part of a body, which is covered where it is, comes out as it would of a
// search that sees all of it: however it is cut, wherever secrets overlap, follow each
// other, or are cut off by its end. (None overlaps itself: which of two is found then
// depends on the cut.)
func TestCoveringInPlace(t *testing.T) {
	secrets := [][]byte{[]byte("abcabcabd"), []byte("cabcad"), []byte("dddeee"), []byte("adddeeeabcabc")}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		text := bytes.Repeat([]byte{'-'}, wholeMask-random.IntN(40))
		for range random.IntN(300) {
			switch random.IntN(4) {
			case 0:
				text = append(text, secrets[random.IntN(len(secrets))]...)
			case 1:
				s := secrets[random.IntN(len(secrets))]
				text = append(text, s[:random.IntN(len(s))]...)
			default:
				text = append(text, "abcde-"[random.IntN(6)])
			}
		}
		want, begun := bytes.Clone(text), 0
		for _, s := range secrets {
			for i := 0; ; {
				j := bytes.Index(text[i:], s)
				if j < 0 {
					break
				}
				copy(want[i+j:], bytes.Repeat([]byte{'*'}, len(s)))
				i += j + len(s)
			}
			for n := shortestPart; n < len(s); n++ {
				if bytes.HasSuffix(text, s[:n]) {
					begun = max(begun, n)
				}
			}
		}
		copy(want[len(text)-begun:], bytes.Repeat([]byte{'*'}, begun))
		var got []byte
		body := Covering(secrets)(&cutReader{random, text})
		for {
			p := make([]byte, 1+random.IntN(2*roomInPlace))
			n, err := body.Read(p)
			if got = append(got, p[:n]...); err != nil {
				break
			}
			for _, s := range secrets {
				if bytes.Contains(p, s) {
					t.Fatalf("%d: a buffer has %q beside what was read into it", round, s)
				}
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%d: %d bytes of %d", round, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				at := max(0, i-40)
				t.Fatalf("%d: at %d\n%s is\n%s and should be\n%s", round, i, text[at:min(len(text), i+40)], got[at:min(len(got), i+40)], want[at:min(len(want), i+40)])
			}
		}
	}
}

// cutReader reads text in random pieces.
type cutReader struct {
	random *rand.Rand
	text   []byte
}

func (r *cutReader) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		return 0, io.EOF
	}
	n := min(len(p), len(r.text), 1+r.random.IntN(200))
	if len(r.text) > wholeMask/2 {
		n = min(len(p), len(r.text)-wholeMask/2)
	}
	copy(p, r.text[:n])
	r.text = r.text[n:]
	return n, nil
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
