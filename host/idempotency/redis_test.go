package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func openRecords(t testing.TB, c Config) *Records {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	k, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// waiting opens Records and returns a channel that gets each waiting duplicate.
func waiting(t testing.TB, c Config) (*Records, <-chan struct{}) {
	began := make(chan struct{}, 100)
	c.OnEvent = func(_ string, e Event) {
		if e == EventWaited {
			began <- struct{}{}
		}
	}
	return openRecords(t, c), began
}

func call(key string) Request { return Request{Scope: "tool", Key: key, Payload: "p"} }

func succeeds(ran *atomic.Int32) func(context.Context) Outcome {
	return func(context.Context) Outcome {
		return Outcome{Kind: OutcomeCompleted, Result: fmt.Append(nil, ran.Add(1))}
	}
}

func TestStoreURLs(t *testing.T) {
	for url, want := range map[string]string{
		"redis://u:secret@h:1?wait_replicas=x":                 "wait_replicas",
		"redis://u:secret@h:1?wait_timeout=1h":                 "wait_timeout",
		"redis://u:secret@h:1?wait_timout=1s":                  "wait_timout",
		"redis://u:secret@h:1?cluster=maybe":                   "cluster",
		"redis://u:secret@h:1/x":                               "database",
		"redis://u:secret@h:1?addr=h:2&read_only=true":         "master only",
		"redis://u:secret@h:1?master_name=m&replica_only=true": "master only",
		"redis://u:secret@h:1:1:%zz":                           "malformed",
		"redos://u:secret@h:1":                                 "unknown store",
		"":                                                     "",
	} {
		k, err := Open(t.Context(), Config{Store: url})
		if url == "" { // the default
			_ = k.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want %q and no secret", url, err, want)
		}
	}
}

// A claim that is retransmitted after its release has no effect.
func TestRedisRemembersReleases(t *testing.T) {
	server := startRedis(t, "--save", "")
	s := openRedisAt(t, server.url(""))
	st := steps{t, redisSubject(server, s), id{"tool", "k"}}
	late := testClaim("a")
	// Released before it arrived, and after.
	st.ends(completion{owner: "a", released: true}, verdictDone)
	if _, _, v, err := s.claim(t.Context(), st.id, late); err == nil {
		t.Errorf("a claim that was taken back: %d", v)
	}
	st.is("", false)
	st.claims(testClaim("b"), verdictRun)
	st.ends(completion{owner: "b", fence: 1, released: true}, verdictDone)
	if _, _, v, err := s.claim(t.Context(), st.id, testClaim("b")); err == nil {
		t.Errorf("a claim that was taken back: %d", v)
	}
	if found, _, err := s.flush(t.Context(), st.id); found || err != nil {
		t.Errorf("flush: %v, %v", found, err)
	}
	if left := server.PTTL(t.Context(), st.id.String()).Val(); left <= 0 || left > keepReleased {
		t.Errorf("remembered for %v", left)
	}
	st.claims(testClaim("c"), verdictRun)
}

// The format of a record in Redis, and the round trips of a call.
func TestRedisRecord(t *testing.T) {
	server := startRedis(t, "--save", "")
	proxy := startProxy(t, server.addr, nil)
	s := openRedisAt(t, "redis://"+proxy.addr)
	i := id{"tool", "k"}
	for n := range 3 { // the first one brings the scripts and asks for the configuration
		proxy.requests.Store(0)
		i.key = fmt.Sprint("k", n)
		st := steps{t, redisSubject(server, s), i}
		st.claims(testClaim("a"), verdictRun)
		st.ends(success("a", 1), verdictDone)
	}
	if n := proxy.requests.Load(); n != 2 {
		t.Errorf("a call takes %d round trips", n)
	}
	h := server.HGetAll(t.Context(), "idemp:tool:k2").Val()
	if h["status"] != "COMPLETED" || h["result"] != string(success("", 0).result) || len(h["expiresAt"]) != 13 || h["error"] != "" {
		t.Errorf("the hash is %v", h)
	}
	if left := server.PTTL(t.Context(), "idemp:tool:k2").Val(); left > testTTL || left < testTTL-time.Minute {
		t.Errorf("it lives for %v", left)
	}
}

// Fifty callers on two hosts: one runs, all get its result through the
// subscription, not by polling.
func TestRedisFiftyAtOnce(t *testing.T) {
	url := startRedis(t, durable...).url("")
	looked := make(chan int, 100)
	host := func(n int) (*Records, <-chan struct{}) {
		return waiting(t, Config{Store: url, Poll: time.Hour, Lease: time.Hour, OnStore: func(op string, _ time.Duration, _ error) {
			if op == "get" {
				looked <- n
			}
		}})
	}
	one, began1 := host(0)
	two, began2 := host(1)
	hosts := []*Records{one, two}
	var ran atomic.Int32
	var wg sync.WaitGroup
	all := make(chan struct{})
	for n := range 50 {
		wg.Go(func() {
			r, err := hosts[n%2].Do(t.Context(), call("k"), func(ctx context.Context) Outcome {
				<-all // until the others wait
				return succeeds(&ran)(ctx)
			})
			if err != nil || string(r.Value) != "1" {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	for range 49 {
		select {
		case <-began1:
		case <-began2:
		}
	}
	// Each host reads the record after it has subscribed, and again on the
	// subscription's confirmation; from then on it relies on messages.
	for looks := [2]int{}; looks[0] < 2 || looks[1] < 2; {
		looks[<-looked]++
	}
	close(all)
	wg.Wait()
	if ran.Load() != 1 {
		t.Errorf("it ran %d times", ran.Load())
	}
}

// The owner is killed with its host: 49 callers on another host are woken when
// its lease expires, or at once if the owner only aborts.
func TestRedisOwnerKilled(t *testing.T) {
	url := startRedis(t, durable...).url("")
	dead := openRedisAt(t, url)
	k, began := waiting(t, Config{Store: url, Poll: time.Hour})
	for _, tt := range []struct {
		name  string
		lease time.Duration
		kill  func()
	}{
		{"killed", time.Second, func() {}},
		{"gives up", time.Hour, func() {
			v, err := dead.complete(t.Context(), id{"tool", "gives up"}, completion{owner: "dead", fence: 1, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}})
			if v != verdictDone || err != nil {
				t.Error(v, err)
			}
		}},
	} {
		c := testClaim("dead")
		c.lease = tt.lease.Milliseconds()
		start := time.Now()
		if _, _, v, err := dead.claim(t.Context(), id{"tool", tt.name}, c); v != verdictRun || err != nil {
			t.Fatal(v, err)
		}
		var wg sync.WaitGroup
		for range 49 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := k.Do(ctx, call(tt.name), func(context.Context) Outcome {
					t.Error("it ran")
					return Outcome{}
				})
				if !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("%s: %v", tt.name, err)
				}
			})
		}
		for range 49 {
			<-began
		}
		tt.kill()
		wg.Wait()
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: told after %v", tt.name, took)
		} else {
			t.Logf("%s: 49 told %v after the claim", tt.name, took.Round(time.Millisecond))
		}
	}
}

// Nothing runs while Redis is unreachable; calls run again when it is back.
func TestRedisAway(t *testing.T) {
	server := startRedis(t, durable...)
	away := atomic.Bool{}
	proxy := startProxy(t, server.addr, func(string) bool { return !away.Load() })
	k := openRecords(t, Config{Store: "redis://" + proxy.addr + "?dial_timeout=100ms&read_timeout=100ms&max_retries=1"})
	var ran atomic.Int32
	if _, err := k.Do(t.Context(), call("before"), succeeds(&ran)); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	if _, err := k.Do(t.Context(), call("away"), succeeds(&ran)); !errors.Is(err, ErrStoreUnavailable) || ran.Load() != 1 {
		t.Errorf("%v, ran %d", err, ran.Load())
	}
	if text := k.Survives(t.Context()); !strings.Contains(text, "does not answer") {
		t.Error(text)
	}
	if err := k.Ping(t.Context()); !errors.Is(err, ErrStoreUnavailable) {
		t.Error(err)
	}
	away.Store(false)
	// The claim without a reply is released, so that the key is free.
	r := call("away")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if res, err := k.Do(ctx, r, succeeds(&ran)); err != nil || res.FromCache {
		t.Errorf("after it came back: %+v, %v", res, err)
	}
	if res, err := k.Do(t.Context(), call("before"), succeeds(&ran)); err != nil || !res.FromCache {
		t.Errorf("what was before: %+v, %v", res, err)
	}
}

// A caller that leaves while its call runs does not take the record with it.
func TestRedisCallerLeaves(t *testing.T) {
	k := openRecords(t, Config{Store: startRedis(t, "--save", "").url("")})
	ctx, leave := context.WithCancel(t.Context())
	_, err := k.Do(ctx, call("k"), func(context.Context) Outcome {
		leave()
		return Outcome{Kind: OutcomeCompleted, Result: json.RawMessage("1")}
	})
	if err != nil {
		t.Error(err)
	}
	if r, err := k.Do(t.Context(), call("k"), func(context.Context) Outcome { t.Error("it ran"); return Outcome{} }); err != nil || string(r.Value) != "1" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A completion that is retransmitted over another connection, after the first one
// was not acknowledged, must not count as acknowledged.
func TestRedisWaitsAgain(t *testing.T) {
	master := startRedis(t, "--save", "")
	lag := make(chan struct{})
	var lags atomic.Bool
	proxy := startProxy(t, master.addr, func(first string) bool {
		if lags.Load() && strings.Contains(strings.ToUpper(first), "PSYNC") {
			<-lag
			return false
		}
		return true
	})
	host, port, _ := strings.Cut(proxy.addr, ":")
	replica := startRedis(t, "--save", "", "--replicaof", host+" "+port)
	replica.waitForOutput(t, "MASTER <-> REPLICA sync: Finished with success")
	t.Cleanup(func() { close(lag) })
	s := openRedisAt(t, master.url("?wait_replicas=1&wait_timeout=3s"))
	i := id{"tool", "k"}
	if _, _, v, err := s.claim(t.Context(), i, testClaim("a")); v != verdictRun || err != nil {
		t.Fatal(v, err)
	}
	for !synced(t, master.Client, replica.Client) {
	}
	lags.Store(true)
	for n := range 4 { // each on a connection of its own, or of another
		again := openRedisAt(t, master.url("?wait_replicas=1&wait_timeout=100ms"))
		if v, err := again.complete(t.Context(), i, success("a", 1)); !errors.Is(err, ErrStoreUnavailable) {
			t.Errorf("end %d: %d, %v", n, v, err)
		}
	}
}

// A record that disappears while its call runs is an alarm and is not recreated.
func TestRecordGone(t *testing.T) {
	server := startRedis(t, durable...)
	k := openRecords(t, Config{Store: server.url("")})
	_, err := k.Do(t.Context(), call("k"), func(ctx context.Context) Outcome {
		if err := server.FlushAll(ctx).Err(); err != nil {
			t.Error(err)
		}
		return Outcome{Kind: OutcomeCompleted, Result: json.RawMessage("1")}
	})
	if !errors.Is(err, ErrNotRecorded) || k.Stats()[EventGone] != 1 {
		t.Errorf("%v, %d alarms", err, k.Stats()[EventGone])
	}
	if n := server.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were made again", n)
	}
}

func TestRedisSurvives(t *testing.T) {
	const survives = "every acknowledged record survives kill -9"
	server := startRedis(t, durable...)
	if text := openRedisAt(t, server.url("")).survives(t.Context()); !strings.Contains(text, survives) {
		t.Error(text)
	}
	if err := server.Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	limited := openRedisAt(t, strings.Replace(server.url(""), "://", "://limited:pw@", 1))
	if text := limited.survives(t.Context()); !strings.Contains(text, "CONFIG GET") || strings.Contains(text, "pw@") {
		t.Error(text)
	}
	if _, _, v, err := limited.claim(t.Context(), id{"tool", "k"}, testClaim("a")); v != verdictRun || err != nil {
		t.Errorf("a claim by who may not read the configuration: %d, %v", v, err)
	}
	if text := openRedisAt(t, startRedis(t).url("")).survives(t.Context()); !strings.Contains(text, "appendonly is no") {
		t.Errorf("with the defaults: %s", text)
	}
}

// failover has calls made over Sentinel, half of them while the replica lags,
// kills the master, and makes all of them again. It returns how often each ran.
func failover(t *testing.T, params string, args ...string) (ran map[string]int, refused int) {
	args = append(args, durable...)
	master := startRedis(t, args...)
	var mu sync.Mutex
	lag, drop := make(chan struct{}), false
	close(lag)
	proxy := startProxy(t, master.addr, func(first string) bool {
		if !strings.Contains(strings.ToUpper(first), "PSYNC") {
			return true
		}
		mu.Lock()
		wait := lag
		mu.Unlock()
		<-wait
		mu.Lock()
		defer mu.Unlock()
		return !drop
	})
	t.Cleanup(func() { // before the proxy is closed
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-lag:
		default:
			drop = true
			close(lag)
		}
	})
	host, port, _ := strings.Cut(proxy.addr, ":")
	replica := startRedis(t, append(args, "--replicaof", host+" "+port)...)
	replica.waitForOutput(t, "MASTER <-> REPLICA sync: Finished with success")

	sentinel := &server{port: freePort(t), more: make(chan struct{})}
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor m %s %s 1\nsentinel down-after-milliseconds m 500\nsentinel failover-timeout m 5000\n",
		sentinel.port, filepath.Dir(conf), host, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal(err)
	}
	sentinel.cmd = exec.Command(program, conf, "--sentinel")
	sentinel.start(t)
	sentinel.waitForOutput(t, "+slave slave")

	ran = map[string]int{}
	url := fmt.Sprintf("redis://127.0.0.1:%d?master_name=m&dial_timeout=500ms&max_retries=1", sentinel.port)
	calls := func(k *Records, keys ...string) {
		for _, key := range keys {
			_, err := k.Do(t.Context(), call(key), func(context.Context) Outcome {
				ran[key]++
				return Outcome{Kind: OutcomeCompleted, Result: json.RawMessage(`1`)}
			})
			if errors.Is(err, ErrStoreUnavailable) {
				refused++
			} else if err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	first, err := Open(t.Context(), Config{Store: url + params, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(first.Survives(t.Context()))
	calls(first, "a", "b", "c")
	if err := master.Do(t.Context(), "WAIT", 1, 5000).Err(); err != nil {
		t.Fatal(err)
	}
	for !synced(t, master.Client, replica.Client) {
	}
	mu.Lock()
	lag = make(chan struct{})
	mu.Unlock()
	calls(first, "d", "e", "f")
	master.kill()
	mu.Lock()
	drop = true
	close(lag)
	mu.Unlock()
	sentinel.waitForOutput(t, "+switch-master")
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := replica.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
	calls(openRecords(t, Config{Store: url + "&wait_replicas=0"}), "a", "b", "c", "d", "e", "f")
	return ran, refused
}

func synced(t *testing.T, master, replica *redis.Client) bool {
	t.Helper()
	field := func(c *redis.Client, name string) string {
		info, err := c.Info(t.Context(), "replication").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, name+":")
		value, _, _ := strings.Cut(rest, "\r\n")
		return value
	}
	return field(replica, "slave_repl_offset") == field(master, "master_repl_offset")
}

// A replica that lags is promoted. With replicas that are waited for, nothing
// runs twice; without, records are lost as Survives describes.
func TestRedisFailover(t *testing.T) {
	t.Run("waited for", func(t *testing.T) {
		t.Parallel()
		ran, refused := failover(t, "&wait_timeout=500ms", "--min-replicas-to-write", "1")
		for key, n := range ran {
			if n != 1 {
				t.Errorf("%s ran %d times", key, n)
			}
		}
		if len(ran) != 6 || refused < 3 { // more on a machine that is slow to sync
			t.Errorf("ran %v, %d refused; want each once, and those refused that came while the replica lagged", ran, refused)
		}
	})
	t.Run("not waited for", func(t *testing.T) {
		t.Parallel()
		ran, refused := failover(t, "")
		if refused != 0 {
			t.Errorf("%d refused", refused)
		}
		for key, want := range map[string]int{"a": 1, "b": 1, "c": 1, "d": 2, "e": 2, "f": 2} {
			if ran[key] != want {
				t.Errorf("%s ran %d times, want %d: the loss that is documented", key, ran[key], want)
			}
		}
	})
}

// A Cluster of three masters is detected from a URL that names one of them.
func TestRedisCluster(t *testing.T) {
	var nodes []*server
	for n, slots := range [][2]int{{0, 5460}, {5461, 10922}, {10923, 16383}} {
		s := startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--save", "")
		if err := s.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]).Err(); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if err := s.ClusterMeet(t.Context(), "127.0.0.1", fmt.Sprint(nodes[0].port)).Err(); err != nil {
				t.Fatal(err)
			}
		}
		nodes = append(nodes, s)
	}
	for _, s := range nodes {
		s.waitForOutput(t, "Cluster state changed: ok")
	}
	for _, params := range []string{"", "?wait_replicas=0&cluster=true"} {
		k := openRecords(t, Config{Store: nodes[1].url(params), Poll: time.Hour, Lease: time.Hour})
		if !strings.Contains(k.Survives(t.Context()), "(Cluster)") {
			t.Error(k.Survives(t.Context()))
		}
		var ran atomic.Int32
		for n := range 60 {
			if r, err := k.Do(t.Context(), call(fmt.Sprint(n)), succeeds(&ran)); err != nil || r.FromCache {
				t.Fatalf("%d: %+v, %v", n, r, err)
			}
			if r, err := k.Do(t.Context(), call(fmt.Sprint(n)), succeeds(&ran)); err != nil || !r.FromCache {
				t.Fatalf("%d again: %+v, %v", n, r, err)
			}
		}
		if list, err := k.List(t.Context(), "tool", 0); err != nil || len(list) != 60 {
			t.Errorf("%d records, %v", len(list), err)
		}
		used := 0
		for _, s := range nodes {
			if s.DBSize(t.Context()).Val() > 0 {
				used++
			}
		}
		if used != 3 {
			t.Errorf("a scope lies on %d of three nodes", used)
		}
		// An end is told whichever node it is on.
		other, began := waiting(t, Config{Store: nodes[2].url(params), Poll: time.Hour})
		for n := range 6 {
			key := fmt.Sprint("wait", n)
			var wg sync.WaitGroup
			_, err := k.Do(t.Context(), call(key), func(context.Context) Outcome {
				wg.Go(func() {
					if r, err := other.Do(t.Context(), call(key), succeeds(&ran)); err != nil || !r.FromCache {
						t.Errorf("%+v, %v", r, err)
					}
				})
				<-began
				return Outcome{Kind: OutcomeCompleted}
			})
			if err != nil {
				t.Error(err)
			}
			wg.Wait()
		}
		if f, err := k.Flush(t.Context(), "tool", ""); err != nil || f.Flushed != 66 {
			t.Errorf("%+v, %v", f, err)
		}
	}
}
