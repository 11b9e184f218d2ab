package dashboard_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is one page of a real Chromium, driven over its pipe.
type browser struct {
	t       testing.TB
	out     *os.File
	session string

	mu      sync.Mutex
	last    int
	answers map[int]chan reply
	gone    bool
	faults  []string // what the page did wrong, as the browser says
	loads   []string // every address that was asked
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// fonts is a configuration of fonts with one family, so that pictures are the same
// wherever that is.
const fonts = `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>%s<cachedir>%s</cachedir>
<match target="pattern"><test name="family" qual="all" compare="not_contains"><string>mono</string></test>
<edit name="family" mode="assign" binding="same"><string>DejaVu Sans</string></edit></match>
<match target="pattern"><test name="family" compare="contains"><string>mono</string></test>
<edit name="family" mode="assign" binding="same"><string>DejaVu Sans Mono</string></edit></match></fontconfig>`

const patience = 30 * time.Second

// open starts a Chromium with an empty page, which ends with the test.
func open(t testing.TB) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Skip("there is no chromium-headless-shell; scripts/test fetches it")
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "fonts.conf")
	var dirs string
	for _, at := range []string{"/usr/share/fonts/truetype/dejavu", filepath.Join(filepath.Dir(filepath.Dir(program)), "root/usr/share/fonts/truetype/dejavu")} {
		dirs += "<dir>" + at + "</dir>"
	}
	if err := os.WriteFile(config, fmt.Appendf(nil, fonts, dirs, filepath.Join(dir, "cache")), 0o600); err != nil {
		t.Fatal(err)
	}
	theirs, ours := pipe(t)
	back, to := pipe(t)
	// The sandbox needs a user who is not root, and namespaces; only this page is opened.
	cmd := exec.Command(program, "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--font-render-hinting=none",
		"--force-color-profile=srgb", "--hide-scrollbars", "--user-data-dir="+filepath.Join(dir, "profile"))
	cmd.ExtraFiles = []*os.File{theirs, to}
	cmd.Env = append(os.Environ(), "FONTCONFIG_FILE="+config, "HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	to.Close()
	b := &browser{t: t, out: ours, answers: map[int]chan reply{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(back) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		b.call(ctx, "", "Browser.close", nil)
		ours.Close()
		killed := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		killed.Stop()
		back.Close()
		<-read
	})
	var target struct{ TargetID string }
	b.must("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.must("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.must(domain+".enable", nil, nil)
	}
	b.must("Emulation.setTimezoneOverride", map[string]any{"timezoneId": "UTC"}, nil)
	b.must("Emulation.setLocaleOverride", map[string]any{"locale": "en-GB"}, nil)
	b.must("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	return b
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// read hands answers to who waits for them, and keeps what else is told of the page.
func (b *browser) read(from *os.File) {
	r := bufio.NewReader(from)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		var m struct {
			ID     int
			Method string
			Params json.RawMessage
			reply
		}
		if json.Unmarshal(bytes.TrimRight(text, "\x00"), &m) != nil {
			continue
		}
		b.mu.Lock()
		switch m.Method {
		case "":
			if c := b.answers[m.ID]; c != nil {
				delete(b.answers, m.ID)
				c <- m.reply
			}
		case "Runtime.exceptionThrown", "Log.entryAdded":
			b.faults = append(b.faults, string(m.Params))
		case "Network.requestWillBeSent":
			var q struct{ Request struct{ URL string } }
			json.Unmarshal(m.Params, &q)
			b.loads = append(b.loads, q.Request.URL)
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	for _, c := range b.answers {
		close(c)
	}
}

// call asks the browser.
func (b *browser) call(ctx context.Context, session, method string, params any) (json.RawMessage, error) {
	b.mu.Lock()
	if b.gone {
		b.mu.Unlock()
		return nil, fmt.Errorf("%s: the browser has ended", method)
	}
	b.last++
	id, c := b.last, make(chan reply, 1)
	b.answers[id] = c
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": session})
	if session == "" {
		text, err = json.Marshal(map[string]any{"id": id, "method": method, "params": params})
	}
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case r, ok := <-c:
		if !ok {
			return nil, fmt.Errorf("%s: the browser has ended", method)
		}
		if r.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, r.Error.Message)
		}
		return r.Result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

func (b *browser) must(method string, params, into any) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if params == nil {
		params = map[string]any{}
	}
	result, err := b.call(ctx, b.session, method, params)
	if err == nil && into != nil {
		err = json.Unmarshal(result, into)
	}
	if err != nil {
		b.t.Fatalf("ask the browser: %v", err)
	}
}

// screen sets how large it is, and whether in the dark.
func (b *browser) screen(width, height int, dark bool) {
	b.t.Helper()
	b.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// before runs a script in every page before its own.
func (b *browser) before(script string) {
	b.t.Helper()
	b.must("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": script}, nil)
}

func (b *browser) visit(url string) {
	b.t.Helper()
	b.must("Page.navigate", map[string]any{"url": url}, nil)
}

// eval is the value of an expression in the page, awaited.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.must("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "allowUnsafeEvalBlockedByCSP": false}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	if into != nil {
		if err := json.Unmarshal(r.Result.Value, into); err != nil {
			b.t.Fatalf("%s: %s: %v", expression, r.Result.Value, err)
		}
	}
}

// await waits until an expression holds, looking at every change of the page.
func (b *browser) await(expression string) {
	b.t.Helper()
	var held bool
	b.eval(`new Promise((done) => {
		let late, look = () => {
			let is = false;
			try { is = !!(`+expression+`); } catch {}
			if (is) { watch.disconnect(); clearTimeout(late); done(true); }
		};
		const watch = new MutationObserver(look);
		late = setTimeout(() => { watch.disconnect(); done(false); }, 20_000);
		watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
		look();
	})`, &held)
	if !held {
		b.t.Fatalf("this never held: %s\nthe page has: %s\nfaults: %q", expression, b.text(), b.faulty())
	}
}

// text is what the page shows.
func (b *browser) text() (text string) {
	b.t.Helper()
	b.eval("document.body.innerText", &text)
	return text
}

// awaitText waits until the page shows a text.
func (b *browser) awaitText(text string) {
	b.t.Helper()
	quoted, _ := json.Marshal(text)
	b.await("document.body.innerText.includes(" + string(quoted) + ")")
}

// faulty is what the page did wrong so far.
func (b *browser) faulty() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.faults...)
}

// requests are the addresses that the page asked so far.
func (b *browser) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.loads...)
}

// shot is the whole page as a PNG.
func (b *browser) shot() []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.must("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": false}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

// press presses a key, as in "Tab" or "Shift+Tab".
func (b *browser) press(key string) {
	b.t.Helper()
	modifiers := 0
	name, shifted := strings.CutPrefix(key, "Shift+")
	if shifted {
		modifiers = 8
	}
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27}
	down := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": codes[name], "modifiers": modifiers}
	if name == "Enter" {
		down["text"] = "\r"
	}
	b.must("Input.dispatchKeyEvent", down, nil)
	b.must("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": codes[name], "modifiers": modifiers}, nil)
}
