package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/tools"
)

// settings are the keys of toold.json, each with a test that shows what it does. Those
// of TestSettings are its subtests.
var settings = map[string]string{
	"instance":                    "TestSettings",
	"tools":                       "TestSwapUnderLoad",
	"restricted":                  "TestSettings",
	"socket":                      "TestBothForms",
	"socket_mode":                 "TestSettings",
	"socket_group":                "TestSettings",
	"admin":                       "TestASocketHasOneDaemon",
	"state":                       "TestLinkedRootAndState",
	"roots":                       "TestReloadedRoots",
	"sockets[].path":              "TestSocketsServeCategoriesAndRoots",
	"sockets[].protocol":          "TestMCP",
	"sockets[].roots":             "TestSocketsServeCategoriesAndRoots",
	"sockets[].categories":        "TestSocketsServeCategoriesAndRoots",
	"sockets[].session":           "TestBoundToASession",
	"sockets[].explicit_sessions": "TestExplicitSessions",
	"sockets[].mode":              "TestSocketsOfOtherUsers",
	"sockets[].group":             "TestSocketsOfOtherUsers",
	"metrics":                     "TestSettings",
	"mcp":                         "TestWebAdmission",
	"dashboard":                   "TestWhoMayLook",
	"traces":                      "TestSpansReachACollector",
	"log_level":                   "TestSettings",
	"store":                       "TestStoreAway",
	"reliability":                 "TestSettings",
	"confine":                     "TestSettings",
	"confine_most":                "TestBinariesDoNotReadTheDaemons",
	"max_connections":             "TestSettings",
	"shutdown_grace":              "TestSettings",
	"guest_memory":                "TestStacksOfManyGuests",
	"allow_writable_tools":        "TestSettings",
	"explicit_sessions":           "TestExplicitSessions",
	"sessions.limit":              "TestSettings",
	"sessions.idle":               "TestSettings",
	"sessions.keep":               "TestSettings",
	"sessions.persist":            "TestSessionInMemory",
	"sessions.watchers":           "TestWatchForms",
	"sessions.watchers_all":       "TestSettings",
	"sessions.watch_events":       "TestSettings",
	"sessions.watch_output":       "TestSettings",
	"sessions.watch_keep":         "TestSettings",
	"sessions.job_output":         "TestJobOutputIsBounded",
	"audit.mode":                  "TestAuditCannotBeWritten",
	"audit.max_bytes":             "TestSettings",
	"audit.max_age_days":          "TestSettings",
	"identity.jwks":               "TestHostileTokens",
	"identity.issuer":             "TestWebAdmission",
	"identity.audience":           "TestWebAdmission",
	"identity.allow_uid":          "TestReload",
	"identity.ignore_claims":      "TestReloadKeepsWhatItDidNotChange",
	"discovery.ttl":               "TestDiscoverySettings",
	"discovery.retry_after":       "TestCallersRefresh",
	"discovery.refused_for":       "TestDiscoverySettings",
	"discovery.refresh_every":     "TestCallersRefresh",
	"discovery.max_identities":    "TestDiscoverySettings",
}

// toolSettings are the keys of tool.json, each with a test that shows what it does.
var toolSettings = map[string]string{
	"$schema":                                      "TestDefaults",
	"annotations.destructive":                      "TestToolSettings",
	"annotations.idempotent":                       "TestToolSettings",
	"annotations.open_world":                       "TestToolSettings",
	"annotations.read_only":                        "TestToolSettings",
	"annotations.title":                            "TestOutputSchema",
	"binary":                                       "TestKinds",
	"callbacks":                                    "TestHooksOfTheCaller",
	"capabilities.env":                             "TestEnvIsAdmittedByName",
	"capabilities.exec":                            "TestProgramsAreJournaled",
	"capabilities.files.*.mode":                    "TestCommands",
	"capabilities.files.*.path":                    "TestCommands",
	"capabilities.http.hosts":                      "TestComponentRequests",
	"capabilities.http.methods":                    "TestComponentRequests",
	"capabilities.http.tls.*.insecure_skip_verify": "TestTLS",
	"capabilities.http.tls.*.server_name":          "TestTLS",
	"capabilities.network":                         "TestNetworkOfBinaries",
	"capabilities.state":                           "TestHardLinksToSecrets",
	"capabilities.tool_call":                       "TestToolCallLists",
	"capabilities.unread":                          "TestPushWithoutSecretIsJudged",
	"category":                                     "TestSocketsServeCategoriesAndRoots",
	"config":                                       "TestKinds",
	"description":                                  "TestUsage",
	"discovery.ttl":                                "TestDiscoverySettings",
	"entry.export":                                 "TestComponentRequests",
	"entry.input":                                  "TestExtism",
	"entry.output":                                 "TestExtism",
	"environment":                                  "TestEnvIsAdmittedByName",
	"environment_seen":                             "TestToolSettings",
	"handler":                                      "TestKinds",
	"hash":                                         "TestHash",
	"idempotent":                                   "TestToolSettings",
	"identity.claims":                              "TestAuditTells",
	"identity.secret":                              "TestDiscoverySettings",
	"limits.compile.memory":                        "TestToolSettings",
	"limits.compile.module":                        "TestToolSettings",
	"limits.compile.time":                          "TestToolSettings",
	"limits.concurrency":                           "TestModulesWaitForNoPlaceThatWaitsForThem",
	"limits.fuel":                                  "TestToolSettings",
	"limits.memory":                                "TestToolSettings",
	"limits.output":                                "TestToolSettings",
	"limits.queue":                                 "TestToolSettings",
	"limits.stream":                                "TestStreamLimit",
	"mutating":                                     "TestDiskIsFull",
	"on":                                           "TestToolsAreRunWithEvents",
	"output_schema":                                "TestOutputSchema",
	"policy":                                       "TestPolicies",
	"reconcile.args":                               "TestReconcile",
	"reconcile.done":                               "TestReconcile",
	"reconcile.not_done":                           "TestReconcile",
	"reliability.auto_key":                         "TestSameRequestUnderAnotherPolicy",
	"reliability.breaker.failure_threshold":        "TestNamesOfTheBreaker",
	"reliability.breaker.failures":                 "TestNamesOfTheBreaker",
	"reliability.breaker.half_open_concurrency": "TestNamesOfTheBreaker",
	"reliability.breaker.ratio":                 "TestToolSettings",
	"reliability.breaker.reset_ms":              "TestNamesOfTheBreaker",
	"reliability.breaker.reset_timeout_ms":      "TestNamesOfTheBreaker",
	"reliability.breaker.window":                "TestToolSettings",
	"reliability.failed_ttl":                    "TestToolSettings",
	"reliability.mode":                          "TestToolSettings",
	"reliability.on_duplicate":                  "TestToolSettings",
	"reliability.retriable_exits":               "TestNamesOfTheBreaker",
	"reliability.retry.budget.burst":            "TestRetryBudget",
	"reliability.retry.budget.share":            "TestToolSettings",
	"reliability.retry.cap_ms":                  "TestToolSettings",
	"reliability.retry.initial_ms":              "TestToolSettings",
	"reliability.retry.max":                     "TestRetryBudget",
	"reliability.ttl":                           "TestToolSettings",
	"roots":                                     "TestReloadedRoots",
	"schema":                                    "TestMisspelledFieldOfACommand",
	"secrets.*.content":                         "TestGitWithoutToken",
	"secrets.*.env":                             "TestSecretsAreMasked",
	"secrets.*.file":                            "TestSecretInFile",
	"secrets.*.from":                            "TestSecretInFile",
	"secrets.*.header":                          "TestGitWithoutToken",
	"secrets.*.host":                            "TestGitWithoutToken",
	"secrets.*.insecure_http":                   "TestPublish",
	"secrets.*.sigv4.region":                    "TestRequestsAreSigned",
	"secrets.*.sigv4.service":                   "TestRequestsAreSigned",
	"secrets.*.ssh_key":                         "TestSSHKey",
	"secrets.*.ssh_sign":                        "TestSigning",
	"secrets.*.tls":                             "TestTLS",
	"stdin":                                     "TestToolSettings",
	"terminal":                                  "TestTerminal",
	"terminal_output":                           "TestTerminalIsFiltered",
	"timeout":                                   "TestToolSettings",
	"user":                                      "TestToolSettings",
	"wasi":                                      "TestKinds",
}

// schemaKeys are the keys of a schema, as settings and toolSettings name them.
func schemaKeys(t *testing.T, prefix string, schema map[string]any) (keys []string) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, v := range properties {
		v := v.(map[string]any)
		items, _ := v["items"].(map[string]any)
		entries, _ := v["additionalProperties"].(map[string]any)
		switch {
		case v["properties"] != nil:
			keys = append(keys, schemaKeys(t, prefix+name+".", v)...)
		case items["properties"] != nil:
			keys = append(keys, schemaKeys(t, prefix+name+"[].", items)...)
		case entries["properties"] != nil:
			keys = append(keys, schemaKeys(t, prefix+name+".*.", entries)...)
		default:
			keys = append(keys, prefix+name)
		}
	}
	return keys
}

// TestEverySettingHasATest: each key of toold.json and tool.json has a test, which there is.
func TestEverySettingHasATest(t *testing.T) {
	there := testsOfTheModule(t)
	for file, c := range map[string]struct {
		schema []byte
		tests  map[string]string
	}{"toold.json": {config.Schema, settings}, "tool.json": {tools.Schema(), toolSettings}} {
		var schema map[string]any
		if err := json.Unmarshal(c.schema, &schema); err != nil {
			t.Fatal(err)
		}
		keys := map[string]bool{}
		for _, key := range schemaKeys(t, "", schema) {
			keys[key] = true
			if c.tests[key] == "" {
				t.Errorf("%s: the schema has %s, and no test", file, key)
			}
		}
		for key, test := range c.tests {
			if !keys[key] {
				t.Errorf("%s: %s has %s, and the schema has not", file, test, key)
			}
			if !there[test] {
				t.Errorf("%s: %s: there is no %s", file, key, test)
			}
		}
	}
	for test, c := range map[string]struct {
		file string
		keys map[string]string
	}{"TestSettings": {"settings_test.go", settings}, "TestToolSettings": {"toolsettings_test.go", toolSettings}} {
		own, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		for key, by := range c.keys {
			part := regexp.MustCompile(`t\.Run\("[^"]*\b` + regexp.QuoteMeta(key[strings.LastIndex(key, ".")+1:]) + `\b`)
			if by == test && !part.Match(own) {
				t.Errorf("%s: %s has no part of it", key, test)
			}
		}
	}
}

var testName = regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)

// testsOfTheModule are the names of all tests.
func testsOfTheModule(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	top := hosttest.ModuleRoot()
	for _, dir := range []string{"host", "cmd", "pdk", "plugins", "scripts", "sdk-examples", "deploy"} {
		err := filepath.WalkDir(filepath.Join(top, dir), func(path string, e os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "testkit") && !strings.Contains(path, "pdktest") || e.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range testName.FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return names
}

// TestSettings shows what each key does that has no test of its own elsewhere.
func TestSettings(t *testing.T) {
	create := func(d *hosttest.Daemon) (id string, err error) {
		data, err := (&client.Sessions{Socket: d.Socket}).Do(t.Context(), client.SessionCall{Name: "mutate", Payload: map[string]any{"op": "create"}})
		var made struct{ ID string }
		if err == nil {
			err = json.Unmarshal(data, &made)
		}
		return made.ID, err
	}
	t.Run("instance", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Instance: "blue"})
		if st, err := client.NewAdmin(d.Admin).Status(t.Context()); err != nil || st.Instance != "blue" {
			t.Errorf("%+v, %v", st, err)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		hosttest.Start(t, config.Config{Metrics: l.Addr().String()})
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for path, want := range map[string]int{"/metrics": 200, "/status": 404} {
			a, err := c.Get("http://" + l.Addr().String() + path)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(a.Body)
			a.Body.Close()
			if a.StatusCode != want || want == 200 && !strings.Contains(string(text), "tool_execution_total") && !strings.Contains(string(text), "go_goroutines") {
				t.Errorf("%s: %d %s", path, a.StatusCode, text)
			}
		}
	})
	t.Run("log_level", func(t *testing.T) {
		if d := hosttest.Start(t, config.Config{LogLevel: "error"}); d.Logs() != "" {
			t.Errorf("it logs %s", d.Logs())
		}
	})
	t.Run("allow_writable_tools", func(t *testing.T) {
		tools := filepath.Join(t.TempDir(), "tools.d")
		if err := os.Mkdir(tools, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(tools, 0o777); err != nil {
			t.Fatal(err)
		}
		c := config.Config{Tools: tools, State: t.TempDir(), Roots: []string{t.TempDir()}, Socket: filepath.Join(t.TempDir(), "s")}
		if err := c.Complete(func(string) (string, bool) { return "", false }); err != nil {
			t.Fatal(err)
		}
		if h, err := host.New(t.Context(), c, io.Discard); err == nil {
			h.Close()
			t.Error("a folder that everybody can write is served")
		}
		hosttest.Start(t, config.Config{Tools: tools, AllowWritableTools: true})
	})
	t.Run("max_connections", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{MaxConnections: 2})
		d.Tool(t, "waits", M{"binary": "/bin/sh"}, nil)
		if err := unix.Mkfifo(filepath.Join(d.Root, "gate"), 0o600); err != nil {
			t.Fatal(err)
		}
		watched := watchAll(t, d)
		var answers []chan *answer
		for range 2 {
			c := make(chan *answer, 1)
			answers = append(answers, c)
			go func() {
				c <- ask(t, d.Socket, M{"tool": "waits", "args": []string{"-c", "read x <gate"}, "cwd": d.Root})
			}()
			watched(events.Attempt)
		}
		if a := ask(t, d.Socket, M{"tool": "waits", "args": []string{"-c", "true"}, "cwd": d.Root}); a.Code != "OVERLOADED" {
			t.Errorf("a third: %s", a.raw)
		}
		// For reading too: else a line that nobody has read yet is gone with the first of its readers.
		gate, err := os.OpenFile(filepath.Join(d.Root, "gate"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer gate.Close()
		gate.WriteString("x\nx\n")
		for _, c := range answers {
			if a := <-c; a.Status != "success" {
				t.Errorf("one of two: %s", a.raw)
			}
		}
	})
	t.Run("shutdown_grace", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{ShutdownGrace: 1})
		d.Tool(t, "waits", M{"binary": "/bin/sh"}, nil)
		if err := unix.Mkfifo(filepath.Join(d.Root, "gate"), 0o600); err != nil {
			t.Fatal(err)
		}
		watched := watchAll(t, d)
		c := make(chan *answer, 1)
		go func() {
			c <- ask(t, d.Socket, M{"tool": "waits", "args": []string{"-c", "read x <gate"}, "cwd": d.Root})
		}()
		watched(events.Attempt)
		d.Stop(t)
		if a := <-c; a.Code != "ABORTED" || !strings.Contains(d.Logs(), `"grace":"1s"`) {
			t.Errorf("the call: %s, and the daemon logs %s", a.raw, d.Logs())
		}
	})
	t.Run("sessions.limit", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Sessions: config.SessionsConfig{Limit: 1}})
		if _, err := create(d); err != nil {
			t.Fatal(err)
		}
		if _, err := create(d); err == nil || !strings.Contains(err.Error(), "1") {
			t.Errorf("a second session: %v", err)
		}
	})
	t.Run("sessions.idle and keep", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Sessions: config.SessionsConfig{Idle: 1, Keep: 1}})
		watched := watchAll(t, d)
		if _, err := create(d); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"suspended", "closed"} {
			for e := watched(events.State); e.State != want; e = watched(events.State) {
			}
		}
	})
	t.Run("restricted", func(t *testing.T) {
		dir := t.TempDir()
		policy, err := os.ReadFile(hosttest.Guest(t, policyPkg))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "echo.wasm"), policy, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		d := hosttest.Start(t, config.Config{Restricted: dir})
		d.Tool(t, "echo", M{"binary": "/bin/echo"}, nil)
		if a := ask(t, d.Socket, M{"tool": "echo", "args": []string{"deny"}, "cwd": d.Root}); a.Code != "DENIED" {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("socket_mode and socket_group", func(t *testing.T) {
		group := os.Getgid()
		if os.Getuid() == 0 {
			group = 12346
		}
		d := hosttest.Start(t, config.Config{SocketMode: "0600", SocketGroup: strconv.Itoa(group)})
		var st unix.Stat_t
		if err := unix.Lstat(d.Socket, &st); err != nil || st.Mode&0o777 != 0o600 || st.Gid != uint32(group) {
			t.Errorf("mode %o, group %d, %v", st.Mode, st.Gid, err)
		}
	})
	t.Run("confine", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Confine: "uid"})
		d.Tool(t, "echo", M{"binary": "/bin/echo"}, nil) // without a user
		if a := ask(t, d.Socket, M{"tool": "echo", "cwd": d.Root}); a.Status == "success" {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("reliability", func(t *testing.T) {
		for mode, want := range map[string]string{"": "xx", "all": "x"} {
			d := hosttest.Start(t, config.Config{Reliability: mode})
			d.Tool(t, "sh", M{"binary": "/bin/sh", "mutating": true}, nil)
			for range 2 {
				ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "printf x >>ran"}, "cwd": d.Root, "idempotency_key": "k"})
			}
			if text, err := os.ReadFile(filepath.Join(d.Root, "ran")); err != nil || string(text) != want {
				t.Errorf("%q: two calls with one key left %q, %v", mode, text, err)
			}
		}
	})
	t.Run("audit.max_age_days", func(t *testing.T) {
		for days, kept := range map[int]bool{1: false, 36500: true} {
			state := t.TempDir()
			folder := filepath.Join(state, "audit")
			synctest.Test(t, func(t *testing.T) { // in the year 2000
				l, err := audit.Open(folder, audit.Options{On: true, MaxBytes: 1 << 30, MaxAge: 36500 * 24 * time.Hour}, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(25 * time.Hour) // a segment is of a day
				if _, err := l.AddSync(t.Context(), 1, func() *audit.Record {
					return &audit.Record{At: time.Now(), Type: audit.TypeBegin, Call: &audit.Call{Tool: "t"}}
				}); err != nil {
					t.Fatal(err)
				}
				l.Close()
			})
			first, err := filepath.Glob(filepath.Join(folder, "*1.log"))
			if err != nil || len(first) != 1 {
				t.Fatalf("the log consists of %q, %v", first, err)
			}
			d := hosttest.Start(t, config.Config{State: state, Audit: config.AuditConfig{MaxAgeDays: days}})
			d.Tool(t, "true", M{"binary": "/bin/true"}, nil)
			if a := ask(t, d.Socket, M{"tool": "true", "cwd": d.Root}); a.Status != "success" {
				t.Errorf("%s", a.raw)
			}
			d.Stop(t)
			if _, err := os.Stat(first[0]); (err == nil) != kept {
				t.Errorf("with %d days, of records of the year 2000: %v", days, err)
			}
		}
	})
	t.Run("audit.max_bytes", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Audit: config.AuditConfig{MaxBytes: 1 << 20}})
		d.Tool(t, "true", M{"binary": "/bin/true"}, nil)
		for range 130 { // of each call 16 KiB of arguments are recorded
			ask(t, d.Socket, M{"tool": "true", "args": slices.Repeat([]string{strings.Repeat("x", 1000)}, 15), "cwd": d.Root})
		}
		until(t, "the log is within its limit", func() bool {
			size := int64(0)
			filepath.WalkDir(filepath.Join(d.Config.State, "audit"), func(_ string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					if info, err := e.Info(); err == nil {
						size += info.Size()
					}
				}
				return nil
			})
			return size < 5<<18
		})
	})
	t.Run("sessions.watch_events", func(t *testing.T) {
		if l := lostMeanwhile(t, config.SessionsConfig{WatchEvents: 8}, false); l == nil || l.State == 0 {
			t.Errorf("lost: %+v", l)
		}
	})
	t.Run("sessions.watch_output", func(t *testing.T) {
		if l := lostMeanwhile(t, config.SessionsConfig{WatchOutput: 64 << 10}, false); l == nil || l.Output == 0 || l.State != 0 {
			t.Errorf("lost: %+v", l)
		}
	})
	t.Run("sessions.watch_keep", func(t *testing.T) {
		if l := lostMeanwhile(t, config.SessionsConfig{}, true); l != nil {
			t.Errorf("by default, after 2 seconds: lost %+v", l)
		}
		if l := lostMeanwhile(t, config.SessionsConfig{WatchKeep: 1}, true); l == nil {
			t.Error("after 2 seconds nothing is lost")
		}
	})
	t.Run("sessions.watchers_all", func(t *testing.T) {
		d := hosttest.Start(t, config.Config{Sessions: config.SessionsConfig{WatchersAll: 1}})
		mine := client.Sessions{Socket: d.Socket}
		enough := errors.New("enough")
		err := mine.Watch(t.Context(), "", "", func(events.Event) error { // the first one watches
			second := client.Sessions{Socket: d.Socket}
			if err := second.Watch(t.Context(), "", "", func(events.Event) error { return enough }); err == nil || !strings.Contains(err.Error(), "sessions.watchers_all") {
				t.Errorf("a second watcher: %v", err)
			}
			return enough
		})
		if !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}

// lostMeanwhile is what a watcher of a session is told that it has lost when it comes back
// after some calls and, if it stays away, two seconds more; nil if nothing.
func lostMeanwhile(t *testing.T, c config.SessionsConfig, away bool) (lost *events.Loss) {
	t.Helper()
	d := sessionDaemon(t, config.Config{Sessions: c})
	id, me := newSession(t, d.Socket), client.Sessions{Socket: d.Socket}
	gone := watch(t, me, id, "")
	gone.stop()
	<-gone.ended
	for range 10 {
		ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "head -c 20000 /dev/zero"}, "cwd": d.Root, "session": id})
	}
	if away {
		ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "sleep 2"}, "cwd": d.Root})
	}
	session(t, d.Socket, "mutate", M{"id": id, "op": "close"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := me.Watch(ctx, id, gone.from, func(e events.Event) error {
		if e.Lost != nil && lost == nil {
			lost = &events.Loss{}
		}
		if e.Lost != nil {
			lost.State, lost.Output = lost.State+e.Lost.State, lost.Output+e.Lost.Output
		}
		return nil
	})
	if err != nil {
		lost = &events.Loss{}
		t.Logf("watching again: %v", err)
	}
	return lost
}

// watchAll returns what waits for the next event of a kind, of all that happens from
// now on.
func watchAll(t *testing.T, d *hosttest.Daemon) func(events.Kind) events.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, ready, done := make(chan events.Event, 1024), make(chan struct{}), make(chan struct{})
	all := client.Sessions{Operator: client.NewAdmin(d.Admin)}
	go func() {
		defer close(done)
		all.Watch(ctx, "", "", func(e events.Event) error {
			if e.Kind == events.Ready {
				close(ready)
			}
			told <- e
			return nil
		})
	}()
	<-ready
	t.Cleanup(func() { cancel(); <-done })
	return func(kind events.Kind) events.Event {
		t.Helper()
		for {
			select {
			case e := <-told:
				if e.Kind == kind {
					return e
				}
			case <-done:
				t.Fatalf("no %s", kind)
			}
		}
	}
}
