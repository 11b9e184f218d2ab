package dashboard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/dashboard"
	"github.com/toold/toold/host/events"
)

// at is when the pictures are of.
var at = time.Date(2026, 3, 14, 2, 41, 30, 0, time.UTC)

// frozen has the page believe that it is then.
const frozen = `Date.now = () => 1773456090000;`

func ago(d time.Duration) string { return at.Add(-d).Format(time.RFC3339Nano) }

// night is a daemon with several things wrong.
func night() map[string]any {
	call := func(tool, id string, started time.Duration, line string) M {
		return M{"execution": id, "tool": tool, "kind": "call", "started": ago(started), "last_line": line, "mutating": tool == "git", "attempts": 1}
	}
	session := func(id, name, cwd string, used time.Duration, calls int, running ...any) M {
		return M{"id": id, "name": name, "state": "active", "cwd": cwd, "owner": "27071aec696ce63cf2360907ed9cda9d", "used": ago(used), "created": ago(3 * time.Hour),
			"labels": M{}, "peers": []any{}, "recent": []any{}, "running": append([]any{}, running...), "telemetry": M{"calls": calls, "fuel": 48_000_000}}
	}
	return map[string]any{
		"GET /status":      M{"version": "v1.4.0", "pid": 311, "instance": "0", "started": ago(26 * time.Hour), "calls": 48211, "lost": []any{}},
		"GET /reliability": M{"mode": "all", "store": "redis", "store_error": "dial tcp 127.0.0.1:6379: connect: connection refused", "tools": []any{}},
		"GET /tools": []M{
			{"name": "curl", "state": "ok", "kind": "binary", "version": "5f0c2b7a91d4e386", "loaded": ago(26 * time.Hour), "policies": []string{"curl/restricted.wasm"}, "confinement": "namespaces"},
			{"name": "gh", "state": "refusing", "kind": "binary", "version": "b7a91d4e3865f0c2", "loaded": ago(26 * time.Hour), "policies": []string{"gh/restricted.wasm"}, "confinement": "namespaces",
				"reason": "every call is refused: the secret GH_TOKEN is not provided; write it into .env beside toold.json"},
			{"name": "git", "state": "ok", "kind": "binary", "version": "91d4e3865f0c2b7a", "loaded": ago(20 * time.Minute), "policies": []string{"_all.wasm", "git/restricted.wasm"}, "confinement": "namespaces", "mutating": true},
			{"name": "report", "state": "stale", "kind": "handler", "version": "e3865f0c2b7a91d4", "loaded": ago(5 * time.Hour),
				"reason": "load tool report: handler.wasm does not compile: invalid magic number; put back the module that was there"},
		},
		"GET /circuit-breakers": []M{{"tool": "curl", "state": "open", "retry_after_ms": 21000}, {"tool": "git", "state": "closed", "failed": 1, "counted": 20}},
		"GET /approvals": []M{{"id": "a-7Q2M", "state": "pending", "asker": "27071aec", "asker_name": "ci-bot", "session": "s2", "text": "pushes to a protected branch",
			"steps": []M{{"tool": "git", "version": "91d4e3865f0c2b7a", "digest": "d"}}, "made": ago(2 * time.Minute), "expires": ago(-28 * time.Minute)}},
		"GET /approvals/a-7Q2M": M{"id": "a-7Q2M", "state": "pending", "asker": "27071aec", "asker_name": "ci-bot", "session": "s2", "text": "pushes to a protected branch", "rule": "git.push.protected",
			"steps": []M{{"tool": "git", "version": "91d4e3865f0c2b7a", "digest": "d", "plan": M{"args": []string{"push", "origin", "main"}, "cwd": "/workspace/site", "mutating": true}}}, "made": ago(2 * time.Minute), "expires": ago(-28 * time.Minute)},
		"GET /identities": []M{{"fingerprint": "9c1f04de77aa21b3", "tool": "report", "state": "stale", "reason": "the server answered 503", "tools": 12, "used": ago(time.Minute), "claims": M{"team": "billing"}}},
		"POST /session/query": M{"data": M{"value": []M{
			session("s1", "nightly", "/workspace/site", 2*time.Second, 311, call("npm", "x1", 94*time.Second, "added 412 packages, 3 vulnerabilities"), call("git", "x2", 3*time.Second, "remote: Counting objects: 61% (122/200)")),
			session("s2", "release", "/workspace/site", 2*time.Minute, 42),
			session("s3", "", "/workspace/docs", 40*time.Minute, 7),
		}}},
		"GET /tools/git": M{"name": "git", "state": "ok", "kind": "binary", "path": "/usr/bin/git", "description": "git, by the policy of this repository", "version": "91d4e3865f0c2b7a91d4e3865f0c2b7a", "loaded": ago(20 * time.Minute),
			"policies": []string{"_all.wasm", "git/restricted.wasm"}, "policy_digests": []string{strings.Repeat("ab", 32), strings.Repeat("cd", 32)}, "confinement": "namespaces", "mutating": true,
			"rights": M{"capabilities": M{"exec": []string{"/usr/lib/git-core"}, "network": []string{"github.com:443", "git.example.com:22"}}, "secrets": []string{"deploy_key"}, "environment": []string{"GIT_TERMINAL_PROMPT"}}},
		"GET /calls/c7": []M{{"n": 9121, "end_n": 9124, "at": ago(time.Minute),
			"call": M{"execution": "c7", "session": "s1", "kind": "call", "trace": "4bf92f3577b34da6a3ce929d0e0e4736", "tool": "git", "version": "91d4e3865f0c2b7a", "args": []string{"push", "origin", "main"}, "cwd": "/workspace/site",
				"identity": M{"id": "27071aec", "subject": "ci-bot", "issuer": "https://ci.example.com", "uid": 1001, "pid": 4711}, "effect": "allow", "rule": "git.push.own", "config": strings.Repeat("12", 32),
				"asked": []M{{"file": "git/restricted.wasm", "sha256": strings.Repeat("cd", 32), "decision": M{"effect": "allow", "rule": "git.push.own", "mutating": true}, "input": M{"args": []string{"push", "origin", "main"}}}},
				"runs":  M{"mutating": true, "changed": []string{"env"}, "env": []string{"GIT_SSH_COMMAND"}}},
			"end": M{"begin": 9121, "status": "error", "code": "STORE_UNAVAILABLE", "message": "the record of the call cannot be written: dial tcp 127.0.0.1:6379: connect: connection refused", "exit_code": 75, "duration_ms": 2014, "attempts": 1}}},
	}
}

// quiet is one with nothing wrong, and nothing to show.
func quiet() map[string]any {
	v := night()
	v["GET /reliability"] = M{"mode": "off", "store": "file", "tools": []any{}}
	v["GET /tools"] = v["GET /tools"].([]M)[:1]
	v["GET /circuit-breakers"], v["GET /approvals"], v["GET /identities"] = []M{}, []M{}, []M{}
	v["POST /session/query"] = M{"data": M{"value": []M{}}}
	return v
}

// serve serves a page that is answered with v, on a port, without a daemon.
func serve(t *testing.T, v map[string]any, hub *events.Hub) (*dashboard.Dashboard, string) {
	t.Helper()
	operator := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := v[r.Method+" "+r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = M{"error": "there is none"}
		}
		json.NewEncoder(w).Encode(answer)
	})
	d, err := dashboard.New("127.0.0.1:0", dashboard.Config{Operator: operator, Events: hub, Admits: func(net.Conn) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve() }()
	t.Cleanup(func() {
		hub.Close()
		d.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d, "http://" + d.Addr() + dashboard.Path
}

// lastHour has the page believe that the stream begins with an hour of calls: the real
// one begins with those that the test has made, at times of its own.
func lastHour(busy bool) string {
	h := M{"event": "history", "since": ago(26 * time.Hour), "minutes": []M{}, "calls": []M{}, "failures": []M{}}
	if busy {
		var minutes, calls, failures []M
		for i := range 60 {
			m := M{"at": at.Truncate(time.Minute).Add(time.Duration(i-59) * time.Minute).Format(time.RFC3339), "calls": 20 + i*7%31, "failed": 0, "refused": i % 4, "p50": 12 + i%5, "p95": 90 + i*13%70, "max": 400, "fuel": 4_000_000 + i*3_100_000%9_000_000}
			if i > 52 {
				m["failed"], m["p95"] = 3*(i-52), 1900+i
			}
			minutes = append(minutes, m)
		}
		for i, c := range []struct {
			tool, code string
			exit, ms   int
		}{
			{"curl", "", 0, 84}, {"git", "", 0, 31}, {"git", "", 1, 22}, {"npm", "TIMEOUT", 0, 300_000}, {"curl", "CIRCUIT_OPEN", 0, 0},
			{"git", "DENIED", 0, 3}, {"git", "STORE_UNAVAILABLE", 0, 2011}, {"git", "STORE_UNAVAILABLE", 0, 2014},
		} {
			e := M{"event": "end", "at": ago(time.Duration(8-i) * 7 * time.Second), "session": "s1", "execution": fmt.Sprint("c", i), "tool": c.tool, "kind": "call", "status": "error", "code": c.code, "exit_code": c.exit, "duration_ms": c.ms, "attempts": 1, "mutating": c.tool == "git", "fuel": 812_000}
			calls = append(calls, e)
			if c.code == "TIMEOUT" || c.code == "STORE_UNAVAILABLE" {
				failures = append(failures, e)
			}
		}
		h["minutes"], h["calls"], h["failures"] = minutes, calls, failures
	}
	text, _ := json.Marshal(h)
	quoted, _ := json.Marshal(string(text))
	return `const parse = JSON.parse; JSON.parse = (s) => {
		const v = parse(s);
		return v?.event === "history" ? parse(` + string(quoted) + `) : v?.event === "tick" ? {...v, minute: null} : v;
	};`
}

// TestPictures compares what the page looks like with how it looked when somebody
// looked at it: on a phone and on a desk, by day and by night. After a change that is
// meant, TOOLD_UPDATE_PICTURES=1 keeps the new ones: look at them.
func TestPictures(t *testing.T) {
	b := open(t)
	b.before(frozen)
	for _, q := range []struct {
		name, path string
		await      string
		daemon     map[string]any
		on         string // which screens
	}{
		{"now", "#/", "invalid magic", night(), "desk-day desk-night phone-day phone-night"},
		{"quiet", "#/", "Nothing is wrong", quiet(), "phone-night"},
		{"tools", "#/tools", "invalid magic", night(), "desk-day phone-night"},
		{"tool", "#/tool/git", "deploy_key", night(), "desk-day"},
		{"call", "#/call/c7/" + ago(7*time.Second), "4bf92f35", night(), "desk-night"},
		{"approval", "#/approval/a-7Q2M", "toolctl approvals deny", night(), "phone-day"},
		{"session", "#/session/s1", "Counting objects", night(), "phone-night"},
	} {
		busy := q.name != "quiet"
		t.Run(q.name, func(t *testing.T) {
			b.t = t
			d, url := serve(t, q.daemon, events.NewHub(events.Limits{}))
			var script struct{ Identifier string }
			b.must("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": lastHour(busy)}, &script)
			defer func() {
				b.visit("about:blank")
				b.must("Page.removeScriptToEvaluateOnNewDocument", map[string]any{"identifier": script.Identifier}, nil)
			}()
			for _, at := range []struct {
				name          string
				width, height int
				dark          bool
			}{{"desk-day", 1280, 900, false}, {"desk-night", 1280, 900, true}, {"phone-day", 390, 844, false}, {"phone-night", 390, 844, true}} {
				if !slices.Contains(strings.Fields(q.on), at.name) {
					continue
				}
				b.screen(at.width, at.height, at.dark)
				b.visit("about:blank") // or only the fragment would be another
				b.visit(url + "#token=" + d.Token())
				b.await(`location.href !== "about:blank" && document.getElementById("link")?.textContent === "live"`)
				b.eval(fmt.Sprintf("location.hash = %q", q.path), nil)
				b.awaitText(q.await)
				if busy {
					b.await(`document.querySelector("nav").textContent.includes("Now 6") && document.querySelector("nav").textContent.includes("Tools 2")`)
				}
				var wide int
				b.eval("document.documentElement.scrollWidth", &wide)
				if wide > at.width {
					t.Errorf("%s: it is %d wide, on a screen of %d", at.name, wide, at.width)
				}
				b.eval("document.activeElement.blur()", nil)
				like(t, q.name+"-"+at.name, b.shot())
			}
		})
	}
	b.t = t
	if faults := b.faulty(); len(faults) > 0 {
		t.Errorf("the page: %q", faults)
	}
}

const (
	// block is the edge of the squares of which averages are compared, in pixels: how
	// an edge of a letter is smoothed does not count.
	block = 8
	// off is by how much an average may differ, and share how many may.
	off   = 20
	share = 0.01
)

// like compares a picture with the one that is kept.
func like(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", "pictures", name+".png")
	if os.Getenv("TOOLD_UPDATE_PICTURES") != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
			err = os.WriteFile(file, got, 0o644)
			if err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n, of, err := differ(want, got); err != nil || float64(n) > share*float64(of) {
		seen := filepath.Join(os.TempDir(), "toold-"+name+".png")
		os.WriteFile(seen, got, 0o644)
		t.Errorf("%s: %d of %d squares differ, %v; what it looks like is in %s; TOOLD_UPDATE_PICTURES=1 keeps it", name, n, of, err, seen)
	}
}

// differ counts the squares in which two pictures differ.
func differ(a, b []byte) (n, of int, err error) {
	var img [2]image.Image
	for i, p := range [][]byte{a, b} {
		if img[i], err = png.Decode(bytes.NewReader(p)); err != nil {
			return 0, 0, err
		}
	}
	if img[0].Bounds() != img[1].Bounds() {
		return 0, 0, fmt.Errorf("one is %v, the other %v", img[0].Bounds(), img[1].Bounds())
	}
	size := img[0].Bounds()
	var pix [2]*image.NRGBA // which is what At is slow for
	for i := range img {
		pix[i] = image.NewNRGBA(size)
		draw.Draw(pix[i], size, img[i], image.Point{}, draw.Src)
	}
	for y := 0; y < size.Max.Y; y += block {
		for x := 0; x < size.Max.X; x += block {
			var sum [2][3]int
			count := 0
			for dy := 0; dy < block && y+dy < size.Max.Y; dy++ {
				for dx := 0; dx < block && x+dx < size.Max.X; dx++ {
					count++
					for i := range img {
						p := pix[i].Pix[pix[i].PixOffset(x+dx, y+dy):]
						for c := range 3 {
							sum[i][c] += int(p[c])
						}
					}
				}
			}
			of++
			for c := range 3 {
				if d := (sum[0][c] - sum[1][c]) / count; d > off || d < -off {
					n++
					break
				}
			}
		}
	}
	return n, of, nil
}

// TestPicturesTell shows that a picture with a line moved, or a color changed, is
// another one.
func TestPicturesTell(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "pictures", "now-phone-night.png"))
	if err != nil {
		t.Fatal(err)
	}
	day, err := os.ReadFile(filepath.Join("testdata", "pictures", "now-phone-day.png"))
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	moved := image.NewRGBA(img.Bounds())
	for y := range img.Bounds().Max.Y {
		for x := range img.Bounds().Max.X {
			moved.Set(x, y, img.At(x, max(y-12, 0)))
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, moved); err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string][]byte{"moved": b.Bytes(), "by day": day} {
		if n, of, err := differ(text, other); err != nil || float64(n) <= share*float64(of) {
			t.Errorf("%s: %d of %d squares differ, %v", name, n, of, err)
		}
	}
	if n, _, err := differ(text, text); n != 0 || err != nil {
		t.Errorf("%d squares differ from themselves, %v", n, err)
	}
}
