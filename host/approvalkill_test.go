package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// killable is a daemon that asks, in a process that can be killed.
type killable struct {
	asking // of which only the configuration and the root are there
	*hosttest.Process
	policies [2][]byte
	serves   int // which of them
}

func newKillable(t testing.TB, c config.Config) *killable {
	t.Helper()
	b, err := os.ReadFile(hosttest.Guest(t, policyPkg))
	if err != nil {
		t.Fatal(err)
	}
	k := &killable{policies: [2][]byte{b, bytes.ReplaceAll(b, []byte("version-000000"), []byte("version-000001"))}}
	if bytes.Equal(k.policies[0], k.policies[1]) {
		t.Fatal("the policy has no version to replace")
	}
	if c.Tools, err = os.MkdirTemp("", "toold-tools"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(c.Tools) })
	k.write(t, c.Tools)
	k.Process = hosttest.StartProcess(t, c)
	k.asking = asking{&hosttest.Daemon{Config: k.Process.Config, Root: k.Process.Root}, t}
	return k
}

// write writes the tool with the policy that serves.
func (k *killable) write(t testing.TB, dir string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "restricted.wasm")
	if err := os.WriteFile(file, k.policies[k.serves], 0o644); err != nil {
		t.Fatal(err)
	}
	hosttest.WriteTool(t, dir, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, map[string]string{"restricted.wasm": file})
}

// swap has the other policy serve.
func (k *killable) swap(t testing.TB, token string) {
	t.Helper()
	// It is loaded by now, and not when it is called first.
	k.refused(&wire.Call{Tool: "ledger", Args: []string{"deny"}, Cwd: k.asking.Root, Token: token}, fault.Denied)
	after := len(k.Process.Logs())
	k.serves = 1 - k.serves
	k.write(t, k.Process.Config.Tools)
	k.AwaitLog(after, "tool swapped", "ledger")
}

func (k *killable) again() {
	k.Kill()
	k.Process.Start()
}

// states are the requests by state, as the operator sees them.
func (k *killable) states(t testing.TB) map[string]int {
	t.Helper()
	list, err := k.operator().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, a := range list {
		n[a.State]++
	}
	return n
}

// The daemon is killed after each step of an approval: what it had answered by then
// still holds, what ran does not run again, and nothing runs that was not approved.
func TestApprovalKilled(t *testing.T) {
	t.Parallel()
	k := newKillable(t, config.Config{})
	c := k.asking.write("one", abi.Approval{})
	is := func(want string) {
		t.Helper()
		if got := fmt.Sprint(k.states(t)); got != want {
			t.Errorf("the requests are %s, not %s", got, want)
		}
	}
	k.refused(c, fault.ApprovalRequired)
	id := k.one().ID
	k.again() // asked
	k.refused(c, fault.ApprovalRequired)
	if k.one().ID != id {
		t.Error("it is asked for anew")
	}
	k.approve(id)
	k.again() // approved
	k.runs(c)
	k.again() // it has run
	k.refused(c, fault.ApprovalRequired)
	is("map[pending:1 used:1]")
	if _, err := k.operator().Decide(t.Context(), k.one().ID, false, "no"); err != nil {
		t.Fatal(err)
	}
	k.again() // denied
	k.refused(c, fault.Denied)
	is("map[denied:1 used:1]")

	// A job waits: its request outlives it.
	job := k.asking.write("two", abi.Approval{})
	job.Background = true
	if r := k.make(job); r.Err != nil {
		t.Fatal(r.Err)
	}
	id = k.one().ID
	k.again()
	k.approve(id)
	if k.ledger() != "one\n" {
		t.Errorf("a job that a crash ended has run: %q", k.ledger())
	}
	job.Background = false
	k.runs(job)

	// It runs.
	gate := filepath.Join(k.asking.Root, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	held := func(line string) []string {
		return []string{"ask", "{}", "-c", `echo "$1" >> ledger; read x < gate`, "sh", line}
	}
	begun := func() *os.File {
		t.Helper()
		f, err := os.OpenFile(gate, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	ended := func(f *os.File) {
		t.Helper()
		defer f.Close()
		for {
			if _, err := f.WriteString("x"); errors.Is(err, syscall.EPIPE) {
				return
			}
			if t.Context().Err() != nil {
				t.Fatal("what ran goes on without its daemon")
			}
			runtime.Gosched()
		}
	}
	three := &wire.Call{Tool: "ledger", Args: held("three"), Cwd: k.asking.Root}
	k.refused(three, fault.ApprovalRequired)
	k.approve(k.one().ID)
	answered := make(chan error, 1)
	call := func() { _, err := client.Call(t.Context(), k.asking.Config.Socket, three); answered <- err }
	go call()
	f := begun()
	k.Kill()
	ended(f)
	if err := <-answered; err == nil {
		t.Error("a call is answered that a kill ended")
	}
	k.Process.Start()
	k.refused(three, fault.ApprovalRequired)
	if _, err := k.operator().Decide(t.Context(), k.one().ID, false, ""); err != nil {
		t.Fatal(err)
	}

	// A list runs, and is in its second call.
	envelope := func(args []string) json.RawMessage {
		b, err := json.Marshal(M{"toolId": "ledger", "payload": M{"args": args, "cwd": k.asking.Root}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	line := func(line string) []string { return k.asking.write(line, abi.Approval{}).Args }
	calls := []json.RawMessage{envelope(line("four")), envelope(held("five")), envelope(line("six"))}
	plan, err := k.caller().Plan(t.Context(), calls)
	if err != nil {
		t.Fatal(err)
	}
	k.again() // planned
	k.approve(plan.Approval.ID)
	k.again() // approved
	go func() { _, err := k.caller().Run(t.Context(), plan.Approval.ID, calls); answered <- err }()
	f = begun()
	k.Kill()
	ended(f)
	if err := <-answered; err == nil {
		t.Error("a list is answered that a kill ended")
	}
	k.Process.Start()
	if ran, err := k.caller().Run(t.Context(), plan.Approval.ID, calls); err == nil {
		t.Errorf("a list goes on after a crash: %+v", ran)
	}
	if a, err := k.operator().Show(t.Context(), plan.Approval.ID); err != nil || a.State != "used" || a.Began != 2 || a.Outcome != "" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := k.ledger(); got != "one\ntwo\nthree\nfour\nfive\n" {
		t.Errorf("the ledger has %q", got)
	}
}

// wanted is a request of a schedule, as it has to be.
type wanted struct {
	key      string // what it is for
	policy   int    // by which it was asked for
	expires  time.Time
	approved bool // by one who may
	denied   bool
	used     bool
}

// TestApprovalSchedules makes calls of a daemon in schedules of chance: arguments, input
// and folder are others than those that were approved, several decide, time passes, the
// policy is swapped, and the daemon is killed at any moment. A call runs only by an
// approval of exactly that, once. TOOLD_TEST_SCHEDULES is how many schedules there are;
// many are shared out among daemons, since most of a schedule is waiting for a daemon to
// start and for what it syncs.
func TestApprovalSchedules(t *testing.T) {
	t.Parallel()
	schedules := 3
	if n, err := strconv.Atoi(os.Getenv("TOOLD_TEST_SCHEDULES")); err == nil {
		schedules = n
	}
	issuer := hosttest.NewIssuer(t)
	daemons := min(4, max(schedules/25, 1))
	for first := range daemons {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			t.Parallel()
			runSchedules(t, issuer, first, daemons, schedules)
		})
	}
}

// runSchedules runs each step'th schedule of so many, from first on, with one daemon.
func runSchedules(t *testing.T, issuer *hosttest.Issuer, first, step, schedules int) {
	k := newKillable(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	if err := os.Mkdir(filepath.Join(k.asking.Root, "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	done, ran := 0, 0
	for seed := first; seed < schedules; seed += step {
		s := &chance{killable: k, t: t, rng: rand.New(rand.NewPCG(uint64(seed), 17)), known: map[string]*wanted{}, ended: map[string]int{}, seed: seed, ttl: 60_000}
		if seed%8 == 1 {
			s.ttl = 1000
		}
		s.asker = issuer.Token(t, M{"sub": fmt.Sprint("alice-", seed)})
		for who, sub := range map[string]string{"bob": "bob", "mallory": "mallory", "the asker": fmt.Sprint("alice-", seed)} {
			s.people = append(s.people, decider{who, who == "bob", &client.Approvals{Socket: k.asking.Config.Socket, Token: issuer.Token(t, M{"sub": sub})}})
		}
		slices.SortFunc(s.people, func(a, b decider) int { return strings.Compare(a.name, b.name) })
		s.people = append(s.people, decider{"the operator", true, k.operator()})
		for range 30 {
			s.step()
		}
		ran += s.check()
		s.begin()
		k.swap(t, s.asker) // which ends what is open
		s.sync()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		done++
	}
	t.Logf("%d schedules, %d calls ran", done, ran)
	if ran < done {
		t.Errorf("%d calls ran in %d schedules: nothing is tried", ran, done)
	}
}

type decider struct {
	name string
	may  bool
	*client.Approvals
}

// chance is a schedule.
type chance struct {
	*killable
	t      testing.TB
	rng    *rand.Rand
	seed   int
	asker  string
	ttl    int64
	people []decider
	known  map[string]*wanted
	ids    []string       // of known, in order
	ended  map[string]int // calls that were answered as done, by key
	served int            // the policy when the step began
	made   struct {       // the last call
		line       int
		in, folder bool
	}
}

// call is one call of a few, and what it is.
func (s *chance) call() (*wire.Call, string) {
	line, in, folder := s.rng.IntN(2), s.rng.IntN(4) == 0, s.rng.IntN(4) == 0
	if s.rng.IntN(2) == 0 { // the same again
		line, in, folder = s.made.line, s.made.in, s.made.folder
	}
	s.made.line, s.made.in, s.made.folder = line, in, folder
	key := fmt.Sprintf("%d-%d-%v-%v", s.seed, line, in, folder)
	c := s.asking.write(key, abi.Approval{By: []string{"sub:bob"}, TTLMS: s.ttl})
	c.Args[3] = `echo "$1" >> "$0"`
	c.Args[4] = filepath.Join(s.asking.Root, "ledger")
	c.Token = s.asker
	if in {
		c.Stdin = []byte("in")
	}
	if folder {
		c.Cwd = filepath.Join(s.asking.Root, "other")
	}
	// What differs must differ by that alone: the line does not say input and folder.
	c.Args[5] = fmt.Sprintf("%d-%d", s.seed, line)
	return c, key
}

// begin begins a step.
func (s *chance) begin() { s.served = s.serves }

func (s *chance) step() {
	s.begin()
	switch n := s.rng.IntN(20); {
	case n < 8:
		c, key := s.call()
		s.ran(s.make(c), key)
	case n < 14:
		s.decide()
	case n < 15: // two at the same time
		if len(s.ids) == 0 {
			return
		}
		id, done := s.ids[len(s.ids)-1], make(chan error, 2)
		for _, yes := range []bool{true, false} {
			go func() { _, err := s.operator().Decide(s.t.Context(), id, yes, ""); done <- err }()
		}
		if a, b := <-done, <-done; a == nil && b == nil {
			s.t.Errorf("request %s is approved and denied", id)
		}
		s.known[id].approved = true // or not: the list says
	case n < 16:
		s.swap(s.t, s.asker)
	case n < 17 && s.ttl == 1000:
		for len(s.ids) > 0 && s.list(s.ids[len(s.ids)-1]).State == "pending" {
			<-time.After(20 * time.Millisecond)
		}
	case n < 18:
		s.again()
	default:
		s.kill()
	}
	s.sync()
}

// kill kills the daemon while it takes a call or a decision.
func (s *chance) kill() {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if len(s.ids) > 0 && s.rng.IntN(2) == 0 {
		id := s.ids[len(s.ids)-1]
		go func() { defer close(done); s.operator().Decide(ctx, id, true, "") }()
		s.known[id].approved = true // or not: the list says
	} else {
		c, key := s.call()
		go func() {
			defer close(done)
			if r, err := client.Call(ctx, s.asking.Config.Socket, c); err == nil {
				s.ran(r, key)
			}
		}()
	}
	for range s.rng.IntN(2000) {
		runtime.Gosched()
	}
	s.Kill()
	<-done
	if s.rng.IntN(4) == 0 { // the policy is another one when the daemon is back
		s.serves = 1 - s.serves
		s.killable.write(s.t, s.asking.Config.Tools)
	}
	s.Process.Start()
}

// decide has somebody decide a request, the newest as a rule.
func (s *chance) decide() {
	if len(s.ids) == 0 {
		return
	}
	id := s.ids[len(s.ids)-1]
	if s.rng.IntN(4) == 0 {
		id = s.ids[s.rng.IntN(len(s.ids))]
	}
	who, yes := s.people[len(s.people)-1], s.rng.IntN(5) > 0
	if s.rng.IntN(2) == 0 {
		who = s.people[s.rng.IntN(len(s.people))]
	}
	w, now := s.known[id], time.Now()
	_, err := who.Decide(s.t.Context(), id, yes, "")
	if err != nil {
		return
	}
	if !who.may || w.approved || w.denied || w.used || now.After(w.expires) {
		s.t.Errorf("%s decides %+v", who.name, w)
	}
	w.approved, w.denied = yes, !yes
}

// ran takes the answer to a call.
func (s *chance) ran(r *wire.Result, key string) {
	switch {
	case r.Err == nil && r.ExitCode == 0:
		s.ended[key]++
	case r.Err != nil && slices.Contains([]fault.Code{fault.ApprovalRequired, fault.Denied, fault.Overloaded}, r.Err.Code):
		if r.Err.Code == fault.ApprovalRequired {
			s.asks(key)
		}
	default:
		s.t.Errorf("%s: %+v", key, r)
	}
}

// asks notes the request that a call made for key, if it made one.
func (s *chance) asks(key string) {
	list, err := s.operator().List(s.t.Context())
	if err != nil {
		return // it is killed
	}
	for _, a := range list {
		if s.known[a.ID] == nil && a.AskerName == fmt.Sprint("sub:alice-", s.seed) {
			s.known[a.ID] = &wanted{key: key, policy: s.served, expires: a.Expires}
			s.ids = append(s.ids, a.ID)
		}
	}
}

func (s *chance) list(id string) adminapi.Approval {
	a, err := s.operator().Show(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return *a
}

// sync holds what the daemon says of each request against what it may say.
func (s *chance) sync() {
	list, err := s.operator().List(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range list {
		w := s.known[a.ID]
		if w == nil {
			if a.AskerName != fmt.Sprint("sub:alice-", s.seed) {
				continue
			}
			// Of a call that a kill ended: what it was for is in what is shown.
			w = &wanted{key: s.keyOf(a.ID), policy: s.served, expires: a.Expires}
			s.known[a.ID] = w
			s.ids = append(s.ids, a.ID)
		}
		switch a.State {
		case "used":
			if !w.used && (!w.approved || w.denied || a.Used.After(w.expires) || w.policy != s.served) {
				s.t.Errorf("request %s ran: %+v, %+v", a.ID, w, a)
			}
			w.used = true
		case "approved":
			if !w.approved || w.used {
				s.t.Errorf("request %s is approved: %+v", a.ID, w)
			}
		case "pending":
			if w.used || w.denied {
				s.t.Errorf("request %s is pending: %+v", a.ID, w)
			}
			w.approved = false
		case "denied":
			w.approved, w.denied = false, true
		default:
			w.approved = w.approved && w.used
		}
	}
}

// keyOf is what a request is for.
func (s *chance) keyOf(id string) string {
	var plan adminapi.ApprovalPlan
	a := s.list(id)
	if err := json.Unmarshal(a.Steps[0].Plan, &plan); err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprintf("%s-%v-%v", plan.Args[len(plan.Args)-1], plan.Stdin != "", strings.HasSuffix(plan.Cwd, "other"))
}

// check holds the ledger against what may have run, and returns how much did.
func (s *chance) check() (ran int) {
	lines, used, ended := map[string]int{}, map[string]int{}, map[string]int{}
	for line := range strings.Lines(s.ledger()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, fmt.Sprint(s.seed, "-")) {
			lines[line]++
			ran++
		}
	}
	name := func(key string) string { return strings.Join(strings.Split(key, "-")[:2], "-") }
	for _, w := range s.known {
		if w.used {
			used[name(w.key)]++
		}
	}
	byKey := map[string]int{}
	for _, w := range s.known {
		if w.used {
			byKey[w.key]++
		}
	}
	for key, n := range s.ended {
		ended[name(key)] += n
		if n > byKey[key] {
			s.t.Errorf("%s: %d calls are answered as done, by %d approvals", key, n, byKey[key])
		}
	}
	for line, n := range lines {
		if n > used[line] || n < ended[line] {
			s.t.Errorf("%s: ran %d times, by %d approvals; %d calls were answered", line, n, used[line], ended[line])
		}
	}
	return ran
}
