// Package redisdb accesses a Redis that several hosts share, whose writes count once they are as safe as it is
// configured to make them.
//
// It guarantees that a durable script (DB.Run) has succeeded only if the replicas of wait_replicas, or else of
// min-replicas-to-write, have acknowledged it; that all is read from masters; that no operation takes longer than five
// seconds; and that no error shows a password. It detects whether an address is a server, a Cluster or Sentinels.
//
// It does not make a Redis durable that is not configured so: Survives reports what it keeps. A failed script may have
// run, and one that is not acknowledged may be lost later.
//
// Its caller is package idempotency, which defines what is stored. No other package links go-redis.
package redisdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// timeout bounds one operation, including its retries.
const timeout = 5 * time.Second

// DB is a connection to a Redis. It is safe for concurrent use.
type DB struct {
	client redis.UniversalClient
	where  string // kind and address without a password, for messages

	// replicas is how many must acknowledge a durable write; below 0 until it was
	// read from the configuration of Redis.
	replicas    atomic.Int64
	waitTimeout time.Duration

	mu    sync.Mutex
	sub   *redis.PubSub // nil until the first Subscribe; guarded by mu
	ready chan struct{} // closed when sub is subscribed; guarded by mu
	wg    sync.WaitGroup
}

// Script is a Lua script.
type Script struct{ script *redis.Script }

// NewScript returns the script with this source.
func NewScript(source string) *Script { return &Script{redis.NewScript(source)} }

// Open opens the Redis of an address. It is not an error if that does not respond. It accepts the URLs of go-redis,
// redis://, rediss:// and unix://, with its parameters. With master_name the addresses are Sentinels; with more than
// one address (addr=HOST:PORT), or cluster=true, they are Cluster nodes. Additional parameters:
//
//	wait_replicas=N   replicas that must acknowledge each claim and each result
//	                  (WAIT). Default: min-replicas-to-write of Redis
//	wait_timeout=D    timeout of that WAIT. Default 1s
func Open(ctx context.Context, address string) (*DB, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("malformed Redis URL") // err holds the password
	}
	q := u.Query()
	d := &DB{waitTimeout: time.Second}
	d.replicas.Store(-1)
	if v := q.Get("wait_replicas"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 100 {
			return nil, fmt.Errorf("wait_replicas=%s: not a number from 0 to 100", v)
		}
		d.replicas.Store(int64(n))
	}
	if v := q.Get("wait_timeout"); v != "" {
		if d.waitTimeout, err = time.ParseDuration(v); err != nil || d.waitTimeout < time.Millisecond || d.waitTimeout > 3*time.Second {
			return nil, fmt.Errorf("wait_timeout=%s: not a duration from 1ms to 3s", v)
		}
	}
	cluster := false
	if v := q.Get("cluster"); v != "" {
		if cluster, err = strconv.ParseBool(v); err != nil {
			return nil, fmt.Errorf("cluster=%s: neither true nor false", v)
		}
	}
	for _, ours := range []string{"wait_replicas", "wait_timeout", "cluster"} {
		q.Del(ours)
	}
	u.RawQuery = q.Encode()
	host := cmp.Or(u.Host, u.Path)
	switch {
	case q.Has("master_name"):
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, withoutSecrets(err, u)
		}
		d.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.ContextTimeoutEnabled = true
		if o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("records are read from the master only: leave out replica_only and route_")
		}
		d.client = redis.NewFailoverClient(o)
		d.where = fmt.Sprintf("%s (Sentinel, master %s)", strings.Join(o.SentinelAddrs, ","), o.MasterName)
	case cluster || q.Has("addr"):
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, withoutSecrets(err, u)
		}
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("records are read from the master only: leave out read_only and route_")
		}
		d.cluster(o)
	default:
		o, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, withoutSecrets(err, u)
		}
		d.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.ContextTimeoutEnabled = true
		client := redis.NewClient(o)
		d.client, d.where = client, host
		// The address may be one node of a Cluster.
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if info, err := client.Info(ctx, "cluster").Result(); err == nil && strings.Contains(info, "cluster_enabled:1") {
			_ = client.Close()
			d.cluster(&redis.ClusterOptions{
				Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
				DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
				PoolSize: o.PoolSize, MaxRetries: o.MaxRetries,
			})
		}
	}
	return d, nil
}

func (d *DB) cluster(o *redis.ClusterOptions) {
	d.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
	o.ContextTimeoutEnabled = true
	d.client, d.where = redis.NewClusterClient(o), strings.Join(o.Addrs, ",")+" (Cluster)"
}

// timeouts sets shorter timeouts than go-redis has, since calls wait for a claim,
// but long enough for WAIT.
func (d *DB) timeouts(dial, read, write *time.Duration) {
	*dial = cmp.Or(*dial, time.Second)
	*read = max(cmp.Or(*read, 2*time.Second), d.waitTimeout+time.Second)
	*write = cmp.Or(*write, 2*time.Second)
}

// withoutSecrets removes the URL's password from an error.
func withoutSecrets(err error, u *url.URL) error {
	text := err.Error()
	if p, ok := u.User.Password(); ok && p != "" {
		text = strings.ReplaceAll(text, p, "xxxxx")
	}
	return errors.New(text)
}

// Run runs a script on one key and returns its reply. go-redis retransmits what got no response, so a script must be
// idempotent. With durable, it succeeds only after the configured number of replicas has acknowledged the write.
func (d *DB) Run(ctx context.Context, script *Script, key string, durable bool, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	keys := []string{key}
	n := int64(0)
	if durable {
		if n = d.replicas.Load(); n < 0 {
			n = d.detectReplicas(ctx)
		}
	}
	if n == 0 {
		v, err := script.script.Run(ctx, d.client, keys, args...).Result()
		return v, explain(err)
	}
	for try := 0; ; try++ {
		v, acked, err := d.evalAndWait(ctx, script.script, keys, int(n), args...)
		switch {
		case err == nil && acked < n:
			return nil, fmt.Errorf("%d of %d replicas acknowledged within %v", acked, n, d.waitTimeout)
		case err == nil:
			return v, nil
		case try < 2 && redis.HasErrorPrefix(err, "MOVED"):
			d.client.(*redis.ClusterClient).ReloadState(ctx)
		default:
			return nil, explain(err)
		}
	}
}

// evalAndWait pipelines a script and WAIT on one connection: WAIT covers all
// writes up to that connection's last reply, so also those of an earlier
// transmission of a script that finds its work done.
func (d *DB) evalAndWait(ctx context.Context, script *redis.Script, keys []string, n int, args ...any) (any, int64, error) {
	var node redis.Cmdable = d.client
	if c, ok := d.client.(*redis.ClusterClient); ok {
		master, err := c.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, 0, err
		}
		node = master
	}
	run := func(eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) (*redis.Cmd, *redis.Cmd) {
		pipe := node.Pipeline()
		cmd := eval(ctx, pipe, keys, args...)
		wait := pipe.Do(ctx, "WAIT", n, d.waitTimeout.Milliseconds())
		_, _ = pipe.Exec(ctx) // each command has its error
		return cmd, wait
	}
	cmd, wait := run(script.EvalSha)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd, wait = run(script.Eval)
	}
	if err := cmp.Or(cmd.Err(), wait.Err()); err != nil {
		return nil, 0, err
	}
	acked, err := wait.Int64()
	return cmd.Val(), acked, err
}

// explain adds to an error of a server what to do about it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	hint := ""
	switch {
	case redis.HasErrorPrefix(err, "MOVED"):
		hint = "; this Redis is of a Cluster: add cluster=true to its URL"
	case redis.HasErrorPrefix(err, "NOREPLICAS"):
		hint = "; fewer replicas than min-replicas-to-write are connected"
	case redis.HasErrorPrefix(err, "OOM"):
		hint = "; raise maxmemory, or flush scopes that are not needed"
	}
	return fmt.Errorf("redis: %w%s", err, hint)
}

// detectReplicas sets the number of acknowledging replicas to
// min-replicas-to-write, or 0 if the configuration cannot be read.
func (d *DB) detectReplicas(ctx context.Context) int64 {
	n := int64(0)
	nodes, err := d.nodes(ctx)
	if err != nil {
		return 0
	}
	for _, f := range nodes {
		m, _ := strconv.ParseInt(f.config["min-replicas-to-write"], 10, 64)
		n = max(n, m)
	}
	d.replicas.CompareAndSwap(-1, n)
	return d.replicas.Load()
}

// masters calls f with every master, one after the other.
func (d *DB) masters(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	switch c := d.client.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex
		return c.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			return f(ctx, c)
		})
	case *redis.Client:
		return f(ctx, c)
	}
	return fmt.Errorf("unexpected Redis client %T", d.client)
}

// Scan calls each with the hashes whose names begin with prefix, in no order, until
// it returns false: with the fields, or the error of reading them, and the time
// of the server in milliseconds since 1970. Those that are made or removed meanwhile
// may be missed.
func (d *DB) Scan(ctx context.Context, prefix string, each func(name string, fields map[string]string, err error, now int64) bool) error {
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(prefix) + "*"
	seen := map[string]bool{} // SCAN may return a name twice
	more := true
	err := d.masters(ctx, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); more; {
			names, next, err := c.Scan(ctx, cursor, pattern, 500).Result()
			if err != nil {
				return err
			}
			names = slices.DeleteFunc(names, func(n string) bool { return seen[n] })
			pipe := c.Pipeline()
			clock := pipe.Time(ctx)
			hashes := make([]*redis.MapStringStringCmd, len(names))
			for n, name := range names {
				seen[name] = true
				hashes[n] = pipe.HGetAll(ctx, name)
			}
			if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return err
			}
			now := clock.Val().UnixMilli()
			for n, name := range names {
				if more {
					more = each(name, hashes[n].Val(), hashes[n].Err(), now)
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		return nil
	})
	return explain(err)
}

// Subscribe calls heard with each message on channel, from when it returns until d
// is closed, and with "" whenever messages may have been missed: at first, and after
// go-redis has renewed a broken connection. Further calls wait for the first one's
// subscription.
func (d *DB) Subscribe(ctx context.Context, channel string, heard func(message string)) error {
	d.mu.Lock()
	if d.sub == nil {
		d.ready = make(chan struct{})
		d.sub = d.client.Subscribe(context.WithoutCancel(ctx), channel)
		messages, ready := d.sub.ChannelWithSubscriptions(), d.ready
		d.wg.Go(func() {
			for m := range messages {
				switch m := m.(type) {
				case *redis.Subscription:
					if ready != nil {
						close(ready)
						ready = nil
					}
					heard("")
				case *redis.Message:
					heard(m.Payload)
				}
			}
		})
	}
	ready := d.ready
	d.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ping checks that every master responds.
func (d *DB) Ping(ctx context.Context) error {
	return explain(d.masters(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }))
}

// Close ends the subscription and closes all connections.
func (d *DB) Close() error {
	d.mu.Lock()
	sub := d.sub
	d.mu.Unlock()
	var err error
	if sub != nil {
		err = sub.Close()
	}
	err = errors.Join(err, d.client.Close())
	d.wg.Wait()
	return err
}

// node is the configuration of one Redis server.
type node struct {
	addr     string
	config   map[string]string // nil if CONFIG GET is not permitted
	replicas int64             // connected
}

func (d *DB) nodes(ctx context.Context) ([]node, error) {
	var out []node
	err := d.masters(ctx, func(ctx context.Context, c *redis.Client) error {
		n := node{addr: c.Options().Addr}
		if err := c.Ping(ctx).Err(); err != nil {
			return err
		}
		for _, name := range []string{"appendonly", "appendfsync", "maxmemory-policy", "maxmemory", "min-replicas-to-write"} {
			m, err := c.ConfigGet(ctx, name).Result()
			if err != nil {
				break // not permitted, or unknown to this version
			}
			if n.config == nil {
				n.config = map[string]string{}
			}
			n.config[name] = m[name]
		}
		if info, err := c.Info(ctx, "replication").Result(); err == nil {
			for line := range strings.Lines(info) {
				if v, ok := strings.CutPrefix(line, "connected_slaves:"); ok {
					n.replicas, _ = strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				}
			}
		}
		out = append(out, n)
		return nil
	})
	return out, err
}

// Survives describes which failures the acknowledged records survive, by the
// configuration of the servers.
func (d *DB) Survives(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	nodes, err := d.nodes(ctx)
	if err != nil {
		return fmt.Sprintf("redis %s: does not answer (%v), so nothing is known of what it keeps. Calls that change something are refused until it answers.", d.where, err)
	}
	replicas := d.replicas.Load()
	if replicas < 0 {
		replicas = d.detectReplicas(ctx)
	}
	return "redis " + d.where + ": " + describeDurability(nodes, replicas)
}

// describeDurability describes which failures records on these servers survive. A
// key may be on any of them, so the weakest one counts.
func describeDurability(nodes []node, wait int64) string {
	var sentences []string
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(sentences, text) {
			sentences = append(sentences, text)
		}
	}
	durable := true
	for _, n := range nodes {
		switch c := n.config; {
		case c == nil:
			durable = false
			add("It does not let this user read its configuration (CONFIG GET), so what it keeps is not known: make sure that it has appendonly yes, appendfsync always and maxmemory-policy noeviction.")
			continue
		case c["appendonly"] != "yes":
			durable = false
			add("appendonly is %s: a kill -9 of Redis or a reboot loses every record since its last snapshot, or all; those keys run again. Set appendonly yes and appendfsync always.", c["appendonly"])
		case c["appendfsync"] == "everysec":
			durable = false
			add("appendfsync is everysec: a kill -9 of Redis keeps the records, a crash of its machine loses those of the last two seconds; their keys run again. Set appendfsync always.")
		case c["appendfsync"] != "always":
			durable = false
			add("appendfsync is %s: a crash of its machine loses the records of about the last 30 seconds; their keys run again. Set appendfsync always.", c["appendfsync"])
		}
		if p := n.config["maxmemory-policy"]; p != "noeviction" && n.config["maxmemory"] != "0" {
			durable = false
			add("maxmemory-policy is %s: when it is full, Redis evicts records, also of running calls; their keys run again. Set noeviction.", p)
		} else if p != "noeviction" {
			add("maxmemory-policy is %s, without effect while maxmemory is 0: set noeviction before that is changed.", p)
		}
	}
	if durable {
		sentences = slices.Insert(sentences, 0, "appendonly yes, appendfsync always, nothing is evicted: every acknowledged record survives kill -9 of toold and of Redis, and a reboot.")
	}
	connected, least := int64(0), int64(-1)
	for _, n := range nodes {
		connected = max(connected, n.replicas)
		if m, err := strconv.ParseInt(n.config["min-replicas-to-write"], 10, 64); err == nil && (least < 0 || m < least) {
			least = m
		}
	}
	switch {
	case wait > 0:
		add("Each claim and each result is acknowledged by %d replica(s) before it counts (WAIT): a failover to one of those loses none.", wait)
		if least <= 0 {
			add("min-replicas-to-write is 0 or not known: set it, so that an isolated master stops writing.")
		}
	case connected > 0:
		add("It has replicas, but nothing waits for them: a failover can lose the last claims and results, and such a key may run twice. Set min-replicas-to-write, and wait_replicas in the URL.")
	default:
		add("It has no replica now: its records are lost with its disk; promoting a lagging replica would lose the last claims.")
	}
	add("A call whose host crashes has an unknown outcome once its lease expires, unless it was declared safe to rerun.")
	return strings.Join(sentences, " ")
}

// LogTo makes go-redis log to log instead of standard error. It affects the
// whole process: main calls it once.
func LogTo(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, "redis client", "message", fmt.Sprintf(format, v...))
}
