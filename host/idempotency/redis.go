package idempotency

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Each script decides on one record within Redis, by the clock of Redis, exactly
// as its function in machine.go does.
var (
	//go:embed scripts/claim.lua
	claimSource string
	//go:embed scripts/complete.lua
	completeSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/get.lua
	getSource string
	//go:embed scripts/flush.lua
	flushSource string
	//go:embed scripts/note.lua
	noteSource string
	//go:embed scripts/resolve.lua
	resolveSource string
)

// redisStore holds records in a Redis that several hosts share, each record a
// hash. go-redis retransmits unanswered commands, so every script is idempotent
// per owner.
type redisStore struct {
	client  redis.UniversalClient
	where   string // kind and address without a password, for messages
	onEnded func(id)

	claimScript, completeScript, renewScript, getScript, flushScript, noteScript, resolveScript *redis.Script

	// replicas is how many must acknowledge a claim and a completion; below 0
	// until it was read from the configuration of Redis.
	replicas    atomic.Int64
	waitTimeout time.Duration

	mu    sync.Mutex
	sub   *redis.PubSub // nil until the first wait; guarded by mu
	ready chan struct{} // closed when sub is subscribed; guarded by mu
	wg    sync.WaitGroup
}

const (
	// endedChannel carries the name of each completed record.
	endedChannel = "idemp:ended"
	// keepReleased is how long a released claim is remembered, so that a
	// retransmission in flight cannot restore it.
	keepReleased = time.Minute
	// redisTimeout bounds one operation, including its retries.
	redisTimeout = 5 * time.Second
)

// openRedis accepts the URLs of go-redis, redis://, rediss:// and unix://, with
// its parameters. With master_name the addresses are Sentinels; with more than
// one address (addr=HOST:PORT), or cluster=true, they are Cluster nodes.
// Additional parameters:
//
//	wait_replicas=N   replicas that must acknowledge each claim and each result
//	                  (WAIT). Default: min-replicas-to-write of Redis
//	wait_timeout=D    timeout of that WAIT. Default 1s
func openRedis(ctx context.Context, address string, ended func(id)) (*redisStore, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("malformed Redis URL") // err holds the password
	}
	q := u.Query()
	s := &redisStore{
		onEnded: ended, waitTimeout: time.Second,
		claimScript: redis.NewScript(claimSource), completeScript: redis.NewScript(completeSource),
		renewScript: redis.NewScript(renewSource), getScript: redis.NewScript(getSource),
		flushScript: redis.NewScript(flushSource), noteScript: redis.NewScript(noteSource), resolveScript: redis.NewScript(resolveSource),
	}
	s.replicas.Store(-1)
	if v := q.Get("wait_replicas"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 100 {
			return nil, fmt.Errorf("wait_replicas=%s: not a number from 0 to 100", v)
		}
		s.replicas.Store(int64(n))
	}
	if v := q.Get("wait_timeout"); v != "" {
		if s.waitTimeout, err = time.ParseDuration(v); err != nil || s.waitTimeout < time.Millisecond || s.waitTimeout > 3*time.Second {
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
		s.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.ContextTimeoutEnabled = true
		if o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("records are read from the master only: leave out replica_only and route_")
		}
		s.client = redis.NewFailoverClient(o)
		s.where = fmt.Sprintf("%s (Sentinel, master %s)", strings.Join(o.SentinelAddrs, ","), o.MasterName)
	case cluster || q.Has("addr"):
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, withoutSecrets(err, u)
		}
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return nil, errors.New("records are read from the master only: leave out read_only and route_")
		}
		s.cluster(o)
	default:
		o, err := redis.ParseURL(u.String())
		if err != nil {
			return nil, withoutSecrets(err, u)
		}
		s.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
		o.ContextTimeoutEnabled = true
		client := redis.NewClient(o)
		s.client, s.where = client, host
		// The address may be one node of a Cluster.
		ctx, cancel := context.WithTimeout(ctx, redisTimeout)
		defer cancel()
		if info, err := client.Info(ctx, "cluster").Result(); err == nil && strings.Contains(info, "cluster_enabled:1") {
			_ = client.Close()
			s.cluster(&redis.ClusterOptions{
				Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
				DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
				PoolSize: o.PoolSize, MaxRetries: o.MaxRetries,
			})
		}
	}
	return s, nil
}

func (s *redisStore) cluster(o *redis.ClusterOptions) {
	s.timeouts(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout)
	o.ContextTimeoutEnabled = true
	s.client, s.where = redis.NewClusterClient(o), strings.Join(o.Addrs, ",")+" (Cluster)"
}

// timeouts sets shorter timeouts than go-redis has, since calls wait for a claim,
// but long enough for WAIT.
func (s *redisStore) timeouts(dial, read, write *time.Duration) {
	*dial = cmp.Or(*dial, time.Second)
	*read = max(cmp.Or(*read, 2*time.Second), s.waitTimeout+time.Second)
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

// eval runs a script. With durable, it succeeds only after the configured number
// of replicas has acknowledged the write.
func (s *redisStore) eval(ctx context.Context, script *redis.Script, i id, durable bool, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	keys := []string{i.String()}
	if !durable {
		v, err := script.Run(ctx, s.client, keys, args...).Result()
		return v, unavailable(err)
	}
	n := s.replicas.Load()
	if n < 0 {
		n = s.detectReplicas(ctx)
	}
	if n == 0 {
		v, err := script.Run(ctx, s.client, keys, args...).Result()
		return v, unavailable(err)
	}
	for try := 0; ; try++ {
		v, acked, err := s.evalAndWait(ctx, script, keys, int(n), args...)
		switch {
		case err == nil && acked < n:
			return nil, fmt.Errorf("%w: %d of %d replicas acknowledged within %v", ErrStoreUnavailable, acked, n, s.waitTimeout)
		case err == nil:
			return v, nil
		case try < 2 && redis.HasErrorPrefix(err, "MOVED"):
			s.client.(*redis.ClusterClient).ReloadState(ctx)
		default:
			return nil, unavailable(err)
		}
	}
}

// evalAndWait pipelines a script and WAIT on one connection: WAIT covers all
// writes up to that connection's last reply, so also those of an earlier
// transmission of a script that finds its work done.
func (s *redisStore) evalAndWait(ctx context.Context, script *redis.Script, keys []string, n int, args ...any) (any, int64, error) {
	var node redis.Cmdable = s.client
	if c, ok := s.client.(*redis.ClusterClient); ok {
		master, err := c.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, 0, err
		}
		node = master
	}
	run := func(eval func(context.Context, redis.Scripter, []string, ...any) *redis.Cmd) (*redis.Cmd, *redis.Cmd) {
		pipe := node.Pipeline()
		cmd := eval(ctx, pipe, keys, args...)
		wait := pipe.Do(ctx, "WAIT", n, s.waitTimeout.Milliseconds())
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

func unavailable(err error) error {
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
	return fmt.Errorf("%w: redis: %w%s", ErrStoreUnavailable, err, hint)
}

// detectReplicas sets the number of acknowledging replicas to
// min-replicas-to-write, or 0 if the configuration cannot be read.
func (s *redisStore) detectReplicas(ctx context.Context) int64 {
	n := int64(0)
	nodes, err := s.nodes(ctx)
	if err != nil {
		return 0
	}
	for _, f := range nodes {
		m, _ := strconv.ParseInt(f.config["min-replicas-to-write"], 10, 64)
		n = max(n, m)
	}
	s.replicas.CompareAndSwap(-1, n)
	return s.replicas.Load()
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (s *redisStore) claim(ctx context.Context, i id, c claimRequest) (*record, time.Duration, verdict, error) {
	lapsed, _ := json.Marshal(lapsedFailure())
	reply, err := s.eval(ctx, s.claimScript, i, true,
		c.owner, c.payload, c.label, c.ttl, c.lease, flag(c.rerun), flag(c.retry), lapsed, endedChannel, string(c.note))
	if err != nil {
		return nil, 0, 0, err
	}
	list, _ := reply.([]any)
	if len(list) < 2 {
		return nil, 0, 0, fmt.Errorf("%w: redis: an unexpected answer to a claim", ErrStoreUnavailable)
	}
	word, _ := list[0].(string)
	now, err := toInt(list[1])
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%w: redis: the time: %w", ErrStoreUnavailable, err)
	}
	var v verdict
	switch word {
	case "run", "take-over", "retry":
		v = map[string]verdict{"run": verdictRun, "take-over": verdictTakeOver, "retry": verdictRetry}[word]
		if len(list) < 3 {
			break
		}
		fence, err := toInt(list[2])
		if err != nil {
			return nil, 0, 0, fmt.Errorf("%w: redis: the fence: %w", ErrStoreUnavailable, err)
		}
		return &record{Status: Pending, Owner: c.owner, Payload: c.payload, Fence: fence, Rerun: c.rerun}, time.Duration(c.lease) * time.Millisecond, v, nil
	case "held":
		v = verdictHeld
	case "unknown":
		v = verdictUnknown
	case "reused":
		v = verdictReused
	case "replay":
		v = verdictReplay
	}
	if v == 0 || len(list) < 3 {
		return nil, 0, 0, fmt.Errorf("%w: redis: the claim was answered %.32q", ErrStoreUnavailable, word)
	}
	r, err := toRecord(list[2])
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%w: redis: %s: %w", ErrStoreUnavailable, i, err)
	}
	return r, time.Duration(r.LeaseUntil-now) * time.Millisecond, v, nil
}

func (s *redisStore) complete(ctx context.Context, i id, e completion) (verdict, error) {
	status, fail, unknown := string(e.status), "", false
	if e.released {
		status = "RELEASED"
	}
	if e.err != nil {
		text, err := json.Marshal(e.err)
		if err != nil {
			return 0, err
		}
		fail, unknown = string(text), e.status == Failed && e.err.Code == CodeOutcomeUnknown
	}
	reply, err := s.eval(ctx, s.completeScript, i, true, e.owner, e.fence, status, string(e.result), fail, flag(unknown),
		e.digest, e.size, e.failedTTLMillis(), keepReleased.Milliseconds(), endedChannel)
	return toVerdict(reply, err)
}

func (s *redisStore) renew(ctx context.Context, i id, owner string, fence, lease int64) (verdict, error) {
	reply, err := s.eval(ctx, s.renewScript, i, false, owner, fence, lease)
	return toVerdict(reply, err)
}

func (s *redisStore) annotate(ctx context.Context, i id, owner string, fence int64, note json.RawMessage) (verdict, error) {
	return toVerdict(s.eval(ctx, s.noteScript, i, true, owner, fence, string(note)))
}

func (s *redisStore) resolve(ctx context.Context, i id, x resolution) (verdict, error) {
	return toVerdict(s.eval(ctx, s.resolveScript, i, true, x.owner, x.fence, flag(x.done), string(x.result), x.digest, x.size,
		keepFailed.Milliseconds(), endedChannel))
}

func toVerdict(reply any, err error) (verdict, error) {
	if err != nil {
		return 0, err
	}
	switch reply {
	case "done":
		return verdictDone, nil
	case "late":
		return verdictLate, nil
	case "gone":
		return verdictGone, nil
	case "held":
		return verdictHeld, nil
	}
	return 0, fmt.Errorf("%w: redis: an unexpected answer", ErrStoreUnavailable)
}

func (s *redisStore) get(ctx context.Context, i id) (*record, time.Duration, error) {
	reply, err := s.eval(ctx, s.getScript, i, false)
	if err != nil {
		return nil, 0, err
	}
	list, _ := reply.([]any)
	if len(list) != 2 {
		return nil, 0, fmt.Errorf("%w: redis: an unexpected answer", ErrStoreUnavailable)
	}
	now, err := toInt(list[0])
	if err == nil {
		var r *record
		if r, err = toRecord(list[1]); r != nil {
			if r = r.live(now); r == nil {
				return nil, 0, nil
			}
			r = r.settled(now)
			return r, time.Duration(r.LeaseUntil-now) * time.Millisecond, nil
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: redis: %s: %w", ErrStoreUnavailable, i, err)
	}
	return nil, 0, nil
}

func toInt(v any) (int64, error) {
	text, ok := v.(string)
	if !ok {
		return 0, fmt.Errorf("%T is not a number", v)
	}
	return strconv.ParseInt(text, 10, 64)
}

// toRecord reads the fields of a hash from RESP2 (a list) or RESP3 (a map). It
// returns nil for no record and for a released claim.
func toRecord(v any) (*record, error) {
	fields := map[string]string{}
	switch v := v.(type) {
	case []any:
		for n := 0; n+1 < len(v); n += 2 {
			name, _ := v[n].(string)
			fields[name], _ = v[n+1].(string)
		}
	case map[any]any:
		for name, value := range v {
			n, _ := name.(string)
			fields[n], _ = value.(string)
		}
	default:
		return nil, errUnreadable
	}
	return fromFields(fields)
}

func fromFields(fields map[string]string) (*record, error) {
	if len(fields) == 0 || fields["status"] == "RELEASED" {
		return nil, nil
	}
	r := &record{
		Status: Status(fields["status"]), Owner: fields["owner"], Payload: fields["payload"],
		Digest: fields["digest"], Label: fields["label"], Rerun: fields["rerun"] == "1",
	}
	size := int64(0)
	for name, to := range map[string]*int64{
		"expiresAt": &r.ExpiresAt, "fence": &r.Fence, "claimedAt": &r.ClaimedAt, "endedAt": &r.EndedAt,
		"leaseUntil": &r.LeaseUntil, "ttl": &r.TTL, "size": &size,
	} {
		if text := fields[name]; text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", errUnreadable, name, err)
			}
			*to = n
		}
	}
	r.Size = int(size)
	if text := fields["result"]; text != "" {
		if r.Result = json.RawMessage(text); !json.Valid(r.Result) {
			return nil, fmt.Errorf("%w: result is not JSON", errUnreadable)
		}
	}
	if text := fields["note"]; text != "" {
		if r.Note = json.RawMessage(text); !json.Valid(r.Note) {
			return nil, fmt.Errorf("%w: note is not JSON", errUnreadable)
		}
	}
	if text := fields["error"]; text != "" {
		if err := json.Unmarshal([]byte(text), &r.Error); err != nil {
			return nil, fmt.Errorf("%w: error: %w", errUnreadable, err)
		}
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return r, nil
}

// masters calls f with every master, one after the other.
func (s *redisStore) masters(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	switch c := s.client.(type) {
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
	return fmt.Errorf("unexpected Redis client %T", s.client)
}

func (s *redisStore) list(ctx context.Context, scope string, each func(string, *record) bool) error {
	prefix := id{scope: scope}.String()
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(prefix) + "*"
	seen := map[string]bool{} // SCAN may return a name twice
	more := true
	err := s.masters(ctx, func(ctx context.Context, c *redis.Client) error {
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
				r, err := fromFields(hashes[n].Val())
				if err = cmp.Or(hashes[n].Err(), err); err != nil {
					r = &record{Status: Failed, Error: &Failure{Code: CodeUnreadable, Message: err.Error()}, ExpiresAt: now + 1}
				}
				if r = r.live(now); more && r != nil {
					more = each(strings.TrimPrefix(name, prefix), r.settled(now))
				}
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
		return nil
	})
	return unavailable(err)
}

func (s *redisStore) flush(ctx context.Context, i id) (found, flushed bool, err error) {
	v, err := toVerdict(s.eval(ctx, s.flushScript, i, false, endedChannel))
	return v == verdictDone || v == verdictHeld, v == verdictDone, err
}

// subscribe keeps one subscription for all keys. go-redis renews it when its
// connection breaks; then all flights are polled for missed completions.
func (s *redisStore) subscribe(ctx context.Context) error {
	s.mu.Lock()
	if s.sub == nil {
		s.ready = make(chan struct{})
		s.sub = s.client.Subscribe(context.WithoutCancel(ctx), endedChannel)
		messages, ready := s.sub.ChannelWithSubscriptions(), s.ready
		s.wg.Go(func() {
			for m := range messages {
				switch m := m.(type) {
				case *redis.Subscription:
					if ready != nil {
						close(ready)
						ready = nil
					}
					s.onEnded(id{})
				case *redis.Message:
					if scope, key, ok := strings.Cut(strings.TrimPrefix(m.Payload, "idemp:"), ":"); ok {
						s.onEnded(id{scope, key})
					}
				}
			}
		})
	}
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *redisStore) ping(ctx context.Context) error {
	return unavailable(s.masters(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }))
}

func (s *redisStore) close() error {
	s.mu.Lock()
	sub := s.sub
	s.mu.Unlock()
	var err error
	if sub != nil {
		err = sub.Close()
	}
	err = errors.Join(err, s.client.Close())
	s.wg.Wait()
	return err
}

// node is the configuration of one Redis server.
type node struct {
	addr     string
	config   map[string]string // nil if CONFIG GET is not permitted
	replicas int64             // connected
}

func (s *redisStore) nodes(ctx context.Context) ([]node, error) {
	var out []node
	err := s.masters(ctx, func(ctx context.Context, c *redis.Client) error {
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

func (s *redisStore) survives(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	nodes, err := s.nodes(ctx)
	if err != nil {
		return fmt.Sprintf("redis %s: does not answer (%v), so nothing is known of what it keeps. Calls that change something are refused until it answers.", s.where, err)
	}
	replicas := s.replicas.Load()
	if replicas < 0 {
		replicas = s.detectReplicas(ctx)
	}
	return "redis " + s.where + ": " + describeDurability(nodes, replicas)
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
