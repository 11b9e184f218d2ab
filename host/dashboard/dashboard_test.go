package dashboard_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/dashboard"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

type M = map[string]any

// daemon is one in a process of its own with a page on a port that is free.
func daemon(t testing.TB, c config.Config) (*hosttest.Process, *adminapi.Dashboard) {
	t.Helper()
	c.Dashboard = "127.0.0.1:0"
	p := hosttest.StartProcess(t, c)
	page, err := client.NewAdmin(p.Admin).Dashboard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p, page
}

// TestPage shows a page with a tool, a call that runs, its output, and its end, as they
// happen.
func TestPage(t *testing.T) {
	p, page := daemon(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "shell", M{"binary": "/bin/sh"}, nil)
	b := open(t)
	b.screen(1280, 900, false)
	b.visit(page.URL())
	b.awaitText(healthy())
	gate := p.Root + "/gate"
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan *wire.Result, 1)
	go func() {
		res, err := client.Call(t.Context(), p.Socket, &wire.Call{Tool: "shell", Cwd: p.Root, Args: []string{"-c", "echo it runs; read x <gate; exit 3"}})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	b.awaitText("it runs")
	if err := os.WriteFile(gate, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitText("exit 3")
	<-done
	b.visit(page.URL()[:len(page.URL())-len("#token="+page.Token)] + "#/tools")
	b.await(`document.querySelector("h2").textContent === "Tools" && document.querySelector("tbody th a")?.textContent === "shell"`)
	if faults := b.faulty(); len(faults) > 0 {
		t.Errorf("the page: %q", faults)
	}
}

// get asks a page, with headers by turns of name and value.
func get(t *testing.T, url string, headers ...string) (status int, body string, header http.Header) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			q.Host = headers[i+1]
		} else {
			q.Header.Set(headers[i], headers[i+1])
		}
	}
	c := http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	a, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 1<<20))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return a.StatusCode, string(text), a.Header
}

// TestWhoMayLook: without the token, under another name, and for a page of another
// site there is nothing to see; files are anybody's, and changes nobody's.
func TestWhoMayLook(t *testing.T) {
	p, page := daemon(t, config.Config{})
	base := "http://" + page.Address
	bearer := []string{"Authorization", "Bearer " + page.Token}
	api := base + dashboard.Path + "api/"
	for _, q := range []struct {
		name, url string
		headers   []string
		want      int
	}{
		{"the page", base + dashboard.Path, nil, 200},
		{"by another name of this machine", base + dashboard.Path, []string{"Host", "localhost:9000"}, 200},
		{"a link of another site", base + dashboard.Path, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"a frame of another site", base + dashboard.Path, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a script of another site", base + dashboard.Path + "app.js", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"with the token", api + "status", bearer, 200},
		{"without", api + "status", nil, 401},
		{"with another", api + "status", []string{"Authorization", "Bearer " + strings.Repeat("A", len(page.Token))}, 401},
		{"with its beginning", api + "status", []string{"Authorization", "Bearer " + page.Token[:20]}, 401},
		{"with an empty one", api + "status", []string{"Authorization", "Bearer "}, 401},
		{"with it in the address", api + "status?token=" + page.Token, nil, 401},
		{"with it as a cookie", api + "status", []string{"Cookie", "token=" + page.Token}, 401},
		{"the stream without", api + "live", nil, 401},
		{"what there is not, without", api + "secrets", nil, 401},
		{"under a name of the web", api + "status", append([]string{"Host", "evil.example:8418"}, bearer...), 403},
		{"the page under a name of the web", base + dashboard.Path, []string{"Host", "evil.example"}, 403},
		{"under an address of the network", api + "status", append([]string{"Host", "10.0.0.5:8418"}, bearer...), 403},
		{"under no name", api + "status", append([]string{"Host", ""}, bearer...), 200}, // Go fills it in
		{"of another origin", api + "status", append([]string{"Origin", "http://evil.example"}, bearer...), 403},
		{"of no origin", api + "status", append([]string{"Origin", "null"}, bearer...), 403},
		{"of another port", api + "status", append([]string{"Origin", "http://127.0.0.1:1"}, bearer...), 403},
		{"of its own origin", api + "status", append([]string{"Origin", base}, bearer...), 200},
		{"of another site", api + "status", append([]string{"Sec-Fetch-Site", "cross-site"}, bearer...), 403},
		{"of another port, as the browser says", api + "status", append([]string{"Sec-Fetch-Site", "same-site"}, bearer...), 403},
		{"of itself, as the browser says", api + "status", append([]string{"Sec-Fetch-Site", "same-origin"}, bearer...), 200},
		{"metrics", base + "/metrics", bearer, 404},
		{"profiles", base + "/debug/pprof/", bearer, 404},
		{"what the page may not ask", api + "results/x", bearer, 404},
		{"records", api + "idempotency?tool=git", bearer, 404},
		{"a path around", api + "tools/..%2Fresults%2Fx", bearer, 404},
		{"a path above", base + dashboard.Path + "..%2f..%2fdashboard.go", nil, 404},
	} {
		status, body, header := get(t, q.url, q.headers...)
		if status != q.want {
			t.Errorf("%s: %d, not %d: %s", q.name, status, q.want, body)
		}
		if strings.Contains(body, page.Token) {
			t.Errorf("%s: the token is in the answer", q.name)
		}
		csp := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; ") || strings.Contains(csp, "unsafe") || header.Get("Cache-Control") != "no-store" || header.Get("Set-Cookie") != "" || header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: headers %v", q.name, header)
		}
	}
	// Nothing changes anything, whatever the method.
	for _, path := range []string{"/upgrade", dashboard.Path + "api/approvals/x/approve", "/circuit-breakers/git/reset", dashboard.Path + "api/circuit-breakers/git/reset", "/session/abort", dashboard.Path + "api/status"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			q, err := http.NewRequestWithContext(t.Context(), method, base+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer "+page.Token)
			a, err := http.DefaultTransport.RoundTrip(q)
			if err != nil {
				t.Fatal(err)
			}
			a.Body.Close()
			if a.StatusCode != 404 && a.StatusCode != 405 {
				t.Errorf("%s %s: %d", method, path, a.StatusCode)
			}
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if strings.Contains(p.Logs(), page.Token) {
		t.Error("the token is in the log")
	}
	// Another daemon has another one.
	if _, other := daemon(t, config.Config{}); other.Token == page.Token || len(page.Token) < 32 {
		t.Errorf("tokens %q and %q", page.Token, other.Token)
	}
}

// TestPageIsOff: without the setting there is no page, on any socket.
func TestPageIsOff(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	if page, err := client.NewAdmin(d.Admin).Dashboard(t.Context()); !errors.Is(err, adminapi.ErrNotFound) || !strings.Contains(err.Error(), "--dashboard") {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestOperatorsSocket has the page on the operator's socket: it needs no token there,
// and once the socket is forwarded to a port, a page of another site gets nothing.
func TestOperatorsSocket(t *testing.T) {
	d := hosttest.Start(t, config.Config{Dashboard: config.DashboardAdmin})
	page, err := client.NewAdmin(d.Admin).Dashboard(t.Context())
	if err != nil || page.Address != "" || page.URL() != "" {
		t.Fatalf("%+v, %v", page, err)
	}
	// As ssh -L does.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var forwarding sync.WaitGroup
	t.Cleanup(func() { l.Close(); forwarding.Wait() })
	forwarding.Go(func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("unix", d.Admin)
			if err != nil {
				here.Close()
				continue
			}
			both := func() { here.Close(); there.Close() }
			forwarding.Go(func() { defer both(); io.Copy(there, here) })
			forwarding.Go(func() { defer both(); io.Copy(here, there) })
		}
	})
	base := "http://" + l.Addr().String()
	for _, q := range []struct {
		name, path string
		headers    []string
		want       int
	}{
		{"the page", dashboard.Path, nil, 200},
		{"what it asks", dashboard.Path + "api/status", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"a program", "/status", []string{"Host", "toold"}, 200},
		{"a name of the web", "/status", []string{"Host", "evil.example:8418"}, 403},
		{"the page by a name of the web", dashboard.Path + "api/status", []string{"Host", "evil.example:8418"}, 403},
		{"a page of another site", dashboard.Path + "api/status", []string{"Origin", "https://evil.example"}, 403},
		{"a page that asks for more", "/status", []string{"Sec-Fetch-Site", "same-origin"}, 403},
	} {
		if status, body, _ := get(t, base+q.path, q.headers...); status != q.want {
			t.Errorf("%s: %d, not %d: %s", q.name, status, q.want, body)
		}
	}
	// A form of another site has an upgrade begin, or would.
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/upgrade", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Origin", "https://evil.example")
	a, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != 403 {
		t.Errorf("a form of another site: %d", a.StatusCode)
	}
	b := open(t)
	b.visit(base + dashboard.Path)
	b.awaitText(healthy())
	// The only wrong thing may be that what it was told has ended.
	d.Stop(t)
	b.awaitText("Not connected")
}

// TestNoToolLooks: what a tool runs is refused on the port, also with the token and
// while it hides what it holds; so is a module, which has the daemon connect.
func TestNoToolLooks(t *testing.T) {
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip("there is no perl")
	}
	// With what confinement lets a tool connect.
	p, page := daemon(t, config.Config{ConfineMost: "landlock"})
	hosttest.WriteTool(t, p.Tools, "look", M{"binary": "/usr/bin/perl", "capabilities": M{"network": []string{page.Address}}}, nil)
	const look = `use IO::Socket::INET; my ($to, $token, $hide) = @ARGV;
if ($hide) { require "syscall.ph" if 0; syscall(157, 4, 0, 0, 0, 0) }
my $s = IO::Socket::INET->new(PeerAddr => $to) or die "connect: $!";
print $s "GET /dashboard/api/status HTTP/1.1\r\nHost: $to\r\nAuthorization: Bearer $token\r\nConnection: close\r\n\r\n";
local $/; print <$s>;`
	ask := func(hide string) string {
		t.Helper()
		res, err := client.Call(t.Context(), p.Socket, &wire.Call{Tool: "look", Cwd: p.Root, Args: []string{"-e", look, page.Address, page.Token, hide}})
		if err != nil {
			t.Fatal(err)
		}
		return string(res.Stdout) + string(res.Stderr)
	}
	for _, hide := range []string{"", "hide"} {
		got := ask(hide)
		if !strings.Contains(got, "403 Forbidden") || !strings.Contains(got, "one that a tool runs") || strings.Contains(got, "instance") {
			t.Errorf("hidden %q: %s", hide, got)
		}
	}
	// The same from a shell is answered.
	out, err := exec.CommandContext(t.Context(), "/usr/bin/perl", "-e", look, page.Address, page.Token, "").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "200 OK") {
		t.Errorf("%v: %s", err, out)
	}
	// In the process of the daemon, as a module is.
	d := hosttest.Start(t, config.Config{Dashboard: "127.0.0.1:0"})
	own, err := client.NewAdmin(d.Admin).Dashboard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if status, body, _ := get(t, "http://"+own.Address+dashboard.Path+"api/status", "Authorization", "Bearer "+own.Token); status != 403 {
		t.Errorf("the daemon's own process: %d %s", status, body)
	}
}

// hostile is a name that is markup, changes the direction of what follows, and hides.
const hostile = "<img src=x onerror=alert(1)>\u202egpj.\u200b\x1b[31m'\"&amp;<script>alert(2)</script>"

// TestHostileNames: whatever a daemon is told by callers, tools and policies is text
// on the page, also where it is everything.
func TestHostileNames(t *testing.T) {
	v := night()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	// Every text of every answer, apart from those that are states and times.
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	var spoil func(key string, v any) any
	spoil = func(key string, v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = spoil(k, v[k])
			}
			if key == "claims" || key == "labels" || key == "capabilities" {
				v[hostile] = hostile
			}
		case []any:
			for i := range v {
				v[i] = spoil(key, v[i])
			}
		case string:
			if !slices.Contains([]string{"state", "effect", "id", "execution", "fingerprint", "session", "used_by"}, key) && !strings.HasPrefix(v, "2026-") {
				return hostile
			}
		}
		return v
	}
	for k := range all {
		all[k] = spoil("", all[k])
	}
	hub := events.NewHub(events.Limits{})
	d, url := serve(t, all, hub)
	b := open(t)
	b.screen(1280, 900, false)
	b.before(`window.alert = () => { window.attacked = true; };`)
	b.visit(url + "#token=" + d.Token())
	b.awaitText("wait for an approval")
	for _, kind := range []events.Kind{events.Begin, events.Output, events.Attempt, events.Steer, events.End, events.Job, events.Settings, events.Queue, events.Tool, events.Approval, events.Discovery} {
		hub.Publish(events.Event{Kind: kind, Owner: hostile, Session: "s1", Execution: hostile, Tool: hostile, Type: hostile, Code: "INTERNAL", LastLine: hostile, Name: hostile, Change: hostile, Approval: hostile, State: "active", Reason: hostile})
	}
	b.awaitText("ended with INTERNAL")
	for _, path := range []string{"#/", "#/calls", "#/sessions", "#/tools", "#/identities", "#/session/s1", "#/tool/git", "#/tool/" + "%3Cimg src=x onerror=alert(3)%3E", "#/call/c7/" + ago(7*time.Second), "#/approval/a-7Q2M", "#/<img src=x onerror=alert(4)>", "#/call/%zz/%00", "#/__proto__/constructor", "#/constructor"} {
		quoted, _ := json.Marshal(path)
		b.eval("location.hash = "+string(quoted), nil)
		b.await(`!document.body.innerText.includes("Asking the daemon")`)
		var bad []string
		b.eval(`[...document.querySelectorAll("img, iframe, object, embed, form, base, script:not([src='app.js']), link:not([rel])")].map((e) => e.outerHTML)
			.concat([...document.querySelectorAll("*")].flatMap((e) => e.getAttributeNames().filter((a) => a.startsWith("on") || a === "style")))
			.concat([...document.querySelectorAll("a")].map((a) => a.getAttribute("href")).filter((h) => !h.startsWith("#")))
			.concat(window.attacked ? ["alert"] : [])
			.concat(/[\u202e\u200b\u001b]/.test(document.body.innerText + document.title) ? ["what is not seen"] : [])`, &bad)
		if len(bad) > 0 {
			t.Errorf("%s: %q", path, bad)
		}
	}
	b.eval(`location.hash = "#/tools"`, nil)
	b.awaitText(`<img src=x onerror=alert(1)>\u{202e}gpj.`)
	for _, url := range b.requests() {
		if !strings.HasPrefix(url, "http://"+d.Addr()+"/") && url != "about:blank" {
			t.Errorf("the page asked for %s", url)
		}
		if strings.Contains(url, d.Token()) && !strings.Contains(url, "#token=") {
			t.Errorf("the token is in what was asked: %s", url)
		}
	}
	for _, f := range b.faulty() {
		if !strings.Contains(f, "404") { // what there is not
			t.Errorf("the page: %s", f)
		}
	}
}

// TestMarkupIsRefused shows that a page which read markup after all would be stopped by
// its policy: by what the browser is told.
func TestMarkupIsRefused(t *testing.T) {
	d, url := serve(t, quiet(), events.NewHub(events.Limits{}))
	b := open(t)
	b.visit(url + "#token=" + d.Token())
	b.awaitText("Nothing is wrong")
	var refused []string
	b.eval(`(async () => {
		const got = [];
		try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); got.push("markup"); } catch {}
		try { new Function("return 1")(); got.push("code of text"); } catch {}
		const run = (make) => new Promise((done) => { const e = make(); e.onload = () => done(true); e.onerror = () => done(false); document.body.append(e); });
		if (await run(() => { const e = document.createElement("img"); e.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw="; return e; })) got.push("a picture of elsewhere");
		try { await fetch("http://127.0.0.1:1/"); got.push("a request elsewhere"); } catch {}
		const s = document.createElement("style"); s.textContent = "body { color: rgb(1, 2, 3) }"; document.head.append(s);
		if (getComputedStyle(document.body).color === "rgb(1, 2, 3)") got.push("a style");
		return got;
	})()`, &refused)
	if len(refused) > 0 {
		t.Errorf("the page may have %q", refused)
	}
}

// TestStreamIsCut: a page whose stream is cut says so, and goes on where it is served
// again; one whose token does not count any more says what to do.
func TestStreamIsCut(t *testing.T) {
	if !hosttest.Judged() {
		t.Skip("the page has other things to tell of here")
	}
	p, page := daemon(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "shell", M{"binary": "/bin/sh"}, nil)
	// A port of which the connections are cut, as a laptop's are that sleeps.
	var mu sync.Mutex
	var conns []net.Conn
	away := false
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var forwarding sync.WaitGroup
	cut := func(gone bool) {
		mu.Lock()
		defer mu.Unlock()
		away = gone
		for _, c := range conns {
			c.Close()
		}
		conns = nil
	}
	t.Cleanup(func() { l.Close(); cut(true); forwarding.Wait() })
	to := page.Address
	forwarding.Go(func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			to := to
			mu.Unlock()
			there, err := net.Dial("tcp", to)
			mu.Lock()
			if err != nil || away {
				here.Close()
				if err == nil {
					there.Close()
				}
				mu.Unlock()
				continue
			}
			conns = append(conns, here, there)
			mu.Unlock()
			forwarding.Go(func() { defer there.Close(); io.Copy(there, here) })
			forwarding.Go(func() { defer here.Close(); io.Copy(here, there) })
		}
	})
	b := open(t)
	b.screen(1280, 900, false)
	b.visit("http://" + l.Addr().String() + dashboard.Path + "#token=" + page.Token)
	// Of the connections of the test's own process: who forwards is whom the daemon sees.
	b.awaitText(healthy())
	var hash string
	if b.eval("location.hash", &hash); strings.Contains(hash, "token") {
		t.Errorf("the address keeps the token: %s", hash)
	}
	cut(true)
	b.awaitText("Not connected")
	b.await(`document.title.startsWith("(1)")`)
	if _, err := client.Call(t.Context(), p.Socket, &wire.Call{Tool: "shell", Cwd: p.Root, Args: []string{"-c", "exit 7"}}); err != nil {
		t.Fatal(err)
	}
	cut(false)
	b.awaitText(healthy())
	b.awaitText("exit 7") // which ended meanwhile
	// It is opened again, in the same tab.
	b.must("Page.reload", nil, nil)
	b.awaitText("exit 7")
	// Another daemon, with another token, at the same address.
	p.Kill()
	b.awaitText("Not connected")
	p.Start()
	next, err := client.NewAdmin(p.Admin).Dashboard(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	to = next.Address
	mu.Unlock()
	b.awaitText("toolctl dashboard")
	b.visit("http://" + l.Addr().String() + dashboard.Path + "#token=" + next.Token)
	b.awaitText(healthy())
}

// healthy is what the page has of a daemon that has no other fault than its level of
// confinement.
func healthy() string {
	if hosttest.Judged() {
		return "Nothing is wrong"
	}
	return "Confinement is not whole"
}

// TestKeyboard walks over the page with the keyboard alone: what has the focus is seen,
// and every view and every thing is reached.
func TestKeyboard(t *testing.T) {
	d, url := serve(t, night(), events.NewHub(events.Limits{}))
	b := open(t)
	b.before(frozen)
	b.before(lastHour(true))
	b.screen(1280, 900, false)
	b.visit(url + "#token=" + d.Token())
	b.await(`document.querySelector("nav").textContent.includes("Now 6")`)
	focus := func() (at string) {
		t.Helper()
		b.eval(`(document.activeElement.textContent + " " + (document.activeElement.getAttribute("href") || "")).trim()`, &at)
		return at
	}
	walk := func(to string) {
		t.Helper()
		for range 60 {
			b.press("Tab")
			at := focus()
			var seen bool
			b.eval(`(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2; })()`, &seen)
			if !seen {
				t.Errorf("the focus on %q is not seen", at)
			}
			if strings.Contains(at, to) {
				return
			}
		}
		t.Fatalf("the Tab key does not lead to %q", to)
	}
	walk("Skip to the content")
	b.press("Enter")
	var on string
	if b.eval("document.activeElement.id", &on); on != "main" {
		t.Errorf("the focus is on %q", on)
	}
	b.await(`location.hash === "#/"`) // the page has put back the view
	walk("#/tool/gh")
	b.press("Enter")
	b.await(`document.activeElement.id === "view" && document.activeElement.textContent === "Tool gh"`)
	b.press("Escape")
	b.await(`location.hash === "#/tools" && document.querySelector("h2").textContent === "Tools"`)
	b.eval("document.body.focus(); scrollTo(0, 0)", nil)
	b.press("Shift+Tab")
	for _, view := range []string{"Calls", "Sessions", "Tools", "Identities", "Now"} {
		b.eval(`document.querySelector(".skip").focus()`, nil)
		walk(view)
		b.press("Enter")
		b.await(`document.querySelector("nav [aria-current=page]").textContent.startsWith("` + view + `")`)
		b.await(`document.activeElement.id === "view"`)
	}
	// What is unfolded, and what has the focus, stays when the page is drawn again.
	walk("The numbers")
	b.press("Enter")
	b.await(`document.querySelector("details").open`)
	b.eval(`new Promise((done) => setTimeout(done, 1500))`, nil)
	if at := focus(); at != "The numbers" {
		t.Errorf("the focus is on %q", at)
	}
	var bad []string
	b.eval(`(() => {
		const bad = [];
		if (!document.documentElement.lang) bad.push("no language");
		for (const name of ["header", "nav", "main"]) if (document.querySelectorAll(name).length !== 1) bad.push(name);
		for (const t of document.querySelectorAll("table")) if (!t.caption || !t.querySelector("thead th[scope=col]") || !t.querySelector("tbody th[scope=row]")) bad.push("a table without headers");
		for (const s of document.querySelectorAll("svg")) if (s.getAttribute("role") !== "img" || !s.getAttribute("aria-label")) bad.push("a picture without words");
		for (const i of document.querySelectorAll("input")) if (!i.labels.length) bad.push("an input without a label");
		if (document.querySelectorAll("[aria-live], [role=status], [role=alert]").length !== 1) bad.push("more than one thing is read out");
		const levels = [...document.querySelectorAll("h1, h2, h3")].map((e) => +e.tagName[1]);
		levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) bad.push("a heading of level " + l + " after " + levels[i - 1]); });
		const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
		if (new Set(ids).size !== ids.length) bad.push("an id twice");
		return bad;
	})()`, &bad)
	if len(bad) > 0 {
		t.Errorf("%q", bad)
	}
}

// TestSlowReader: who does not read what happens is cut off, and holds nobody up.
func TestSlowReader(t *testing.T) {
	hub := events.NewHub(events.Limits{Events: 64})
	d, url := serve(t, quiet(), hub)
	nc, err := net.Dial("tcp", d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, "GET "+dashboard.Path+"api/live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+d.Token()+"\r\nConnection: close\r\n\r\n")
	first := make([]byte, 1)
	if _, err := nc.Read(first); err != nil { // it watches
		t.Fatal(err)
	}
	for range 200_000 {
		hub.Publish(events.Event{Kind: events.End, Owner: "o", Session: "s", Execution: "x", Tool: strings.Repeat("t", 200)})
	}
	if status, body, _ := get(t, url+"api/status", "Authorization", "Bearer "+d.Token()); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	nc.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, nc); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the stream does not end: %v", err)
	}
}

// TestCloseWaitsForNobody: a daemon that stops, or gives its place away while calls wait,
// does not wait for connections that browsers open and ask nothing on.
func TestCloseWaitsForNobody(t *testing.T) {
	d, err := dashboard.New("127.0.0.1:0", dashboard.Config{Operator: http.NotFoundHandler(), Events: events.NewHub(events.Limits{}), Admits: func(net.Conn) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve() }()
	idle, err := net.Dial("tcp", d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	get(t, "http://"+d.Addr()+dashboard.Path) // after the other was accepted
	begun := time.Now()
	d.Close()
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStrangersKeepNobodyOut: connections that ask nothing keep no page out, and end none
// that is open.
func TestStrangersKeepNobodyOut(t *testing.T) {
	hub := events.NewHub(events.Limits{})
	d, url := serve(t, quiet(), hub)
	live, err := net.Dial("tcp", d.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	io.WriteString(live, "GET "+dashboard.Path+"api/live HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+d.Token()+"\r\n\r\n")
	in := bufio.NewReader(live)
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for range 150 {
		nc, err := net.Dial("tcp", d.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	if status, body, _ := get(t, url+"api/status", "Authorization", "Bearer "+d.Token()); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	hub.Publish(events.Event{Kind: events.End, Owner: "o", Session: "s", Execution: "x", Tool: "the-tool"})
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("the page that was open: %v", err)
		}
		if strings.Contains(line, "the-tool") {
			break
		}
	}
}
