package redisdb

import (
	"strings"
	"testing"
)

func TestOpen(t *testing.T) {
	for url, want := range map[string]string{
		"redis://127.0.0.1:1/3":                                                "127.0.0.1:1",
		"redis://127.0.0.1:1?addr=127.0.0.1:2":                                 "127.0.0.1:1,127.0.0.1:2 (Cluster)",
		"redis://u:secret@127.0.0.1:1?cluster=true":                            "127.0.0.1:1 (Cluster)",
		"redis://127.0.0.1:1/2?master_name=m&addr=127.0.0.1:2&wait_replicas=1": "127.0.0.1:1,127.0.0.1:2 (Sentinel, master m)",
		"unix:///nowhere/redis.sock":                                           "/nowhere/redis.sock",
	} {
		s, err := Open(t.Context(), url)
		if err != nil || s.where != want {
			t.Errorf("%s: %v, %v", url, s, err)
			continue
		}
		_ = s.Close()
	}
}

// What is said of servers is said of the weakest. Real ones are asked in the tests
// of package idempotency, which keeps something there.
func TestDescribeDurability(t *testing.T) {
	good := map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "maxmemory": "0", "min-replicas-to-write": "0"}
	with := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for k, v := range good {
			m[k] = v
		}
		for n := 0; n < len(pairs); n += 2 {
			m[pairs[n]] = pairs[n+1]
		}
		return m
	}
	const survives = "every acknowledged record survives kill -9"
	for _, tt := range []struct {
		name      string
		nodes     []node
		wait      int64
		want, not []string
	}{
		{"durable", []node{{config: good}}, 0, []string{survives, "no replica now"}, []string{"Set appendonly"}},
		{"no log", []node{{config: with("appendonly", "no")}}, 0, []string{"appendonly is no", "loses every record"}, []string{survives}},
		{"everysec", []node{{config: with("appendfsync", "everysec")}}, 0, []string{"the last two seconds"}, []string{survives}},
		{"no sync", []node{{config: with("appendfsync", "no")}}, 0, []string{"appendfsync is no"}, []string{survives}},
		{"evicts", []node{{config: with("maxmemory-policy", "allkeys-lru", "maxmemory", "1000")}}, 0, []string{"evicts records", "noeviction"}, []string{survives}},
		{"would evict", []node{{config: with("maxmemory-policy", "allkeys-lru")}}, 0, []string{survives, "without effect"}, nil},
		{"not told", []node{{}}, 0, []string{"CONFIG GET", "not known"}, []string{survives}},
		{"replicas", []node{{config: good, replicas: 2}}, 0, []string{"a failover can lose", "wait_replicas"}, nil},
		{"replicas that are waited for", []node{{config: with("min-replicas-to-write", "1"), replicas: 2}}, 1, []string{"acknowledged by 1 replica"}, []string{"can lose", "Set min-replicas"}},
		{"waited for, not fenced", []node{{config: good, replicas: 2}}, 1, []string{"acknowledged by 1", "min-replicas-to-write is 0"}, nil},
		{"one bad node of two", []node{{config: good}, {config: with("appendonly", "no")}}, 0, []string{"appendonly is no"}, []string{survives}},
	} {
		got := describeDurability(tt.nodes, tt.wait)
		for _, w := range tt.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", tt.name, got, w)
			}
		}
		for _, w := range tt.not {
			if strings.Contains(got, w) {
				t.Errorf("%s: %q has %q", tt.name, got, w)
			}
		}
	}
}
