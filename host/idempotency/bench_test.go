package idempotency

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func benchClaim(n int64) (id, claimRequest) {
	return id{"tool", fmt.Sprintf("%064d", n)}, claimRequest{owner: fmt.Sprint(n), payload: "p", ttl: 86_400_000, lease: 15_000}
}

// pair makes the two store operations of a call.
func pair(b testing.TB, s store, n int64) {
	i, c := benchClaim(n)
	r, _, v, err := s.claim(context.Background(), i, c)
	if err != nil || v != verdictRun {
		b.Fatal(v, err)
	}
	v, err = s.complete(context.Background(), i, completion{owner: c.owner, fence: r.Fence, status: Completed, result: []byte(`{"exitCode":0,"stdout":"hello"}`)})
	if err != nil || v != verdictDone {
		b.Fatal(v, err)
	}
}

// ratio alternates two functions and reports the ratio of their medians, so that
// other load affects both.
func ratio(b *testing.B, plain, ours func()) {
	var p, o []time.Duration
	for b.Loop() {
		start := time.Now()
		plain()
		middle := time.Now()
		ours()
		p, o = append(p, middle.Sub(start)), append(o, time.Since(middle))
	}
	slices.Sort(p)
	slices.Sort(o)
	b.ReportMetric(float64(p[len(p)/2].Nanoseconds()), "plain-ns")
	b.ReportMetric(float64(o[len(o)/2].Nanoseconds()), "ours-ns")
	b.ReportMetric(float64(o[len(o)/2])/float64(p[len(p)/2]), "ratio")
}

func BenchmarkFile(b *testing.B) {
	dir := b.TempDir()
	s, err := openFile(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	var n atomic.Int64
	b.Run("against-two-synced-appends", func(b *testing.B) {
		f, err := os.Create(filepath.Join(dir, "plain"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		ratio(b, func() {
			for range 2 {
				if _, err := f.Write(make([]byte, 300)); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		}, func() { pair(b, s, n.Add(1)) })
	})
	b.Run("against-two-synced-bbolt-puts", func(b *testing.B) {
		db, err := bolt.Open(filepath.Join(dir, "bolt"), 0o600, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		k := 0
		ratio(b, func() {
			k++
			for range 2 {
				err := db.Update(func(tx *bolt.Tx) error {
					bk, err := tx.CreateBucketIfNotExists([]byte("b"))
					if err != nil {
						return err
					}
					return bk.Put(fmt.Appendf(nil, "%064d", k), make([]byte, 300))
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		}, func() { pair(b, s, n.Add(1)) })
	})
	b.Run("claim-end-64", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				pair(b, s, n.Add(1))
			}
		})
	})
}

// The overhead on Redis: two scripts against two plain round trips, on one server
// and one connection.
func BenchmarkRedis(b *testing.B) {
	for _, how := range []struct {
		name string
		args []string
	}{{"always", durable}, {"memory", []string{"--save", ""}}} {
		server := startRedis(b, how.args...)
		s := openRedisAt(b, server.url(""))
		ctx := context.Background()
		var n atomic.Int64
		pair(b, s, n.Add(1)) // brings the scripts
		b.Run(how.name, func(b *testing.B) {
			ratio(b, func() {
				key := fmt.Sprintf("plain:%064d", n.Add(1))
				for _, v := range []string{"PENDING", `{"exitCode":0,"stdout":"hello"}`} {
					if err := server.Set(ctx, key, v, time.Hour).Err(); err != nil {
						b.Fatal(err)
					}
				}
			}, func() { pair(b, s, n.Add(1)) })
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	var n atomic.Int64
	b.Run("mutexed-map", func(b *testing.B) {
		var mu sync.Mutex
		m := map[string]record{}
		for b.Loop() {
			i, c := benchClaim(n.Add(1))
			mu.Lock()
			m[i.String()] = record{Status: Pending, Owner: c.owner}
			mu.Unlock()
			mu.Lock()
			m[i.String()] = record{Status: Completed, Owner: c.owner, Result: []byte(`{"exitCode":0,"stdout":"hello"}`)}
			mu.Unlock()
			if len(m) > 100_000 {
				clear(m)
			}
		}
	})
	s := newMemory(100_000, 1<<30, func(string) {})
	b.Run("claim-end", func(b *testing.B) {
		for b.Loop() {
			pair(b, s, n.Add(1))
		}
	})
	k, err := Open(context.Background(), Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	runs := func(context.Context) Outcome {
		return Outcome{Kind: OutcomeCompleted, Result: []byte(`{"exitCode":0,"stdout":"hello"}`)}
	}
	b.Run("do", func(b *testing.B) {
		for b.Loop() {
			if _, err := k.Do(context.Background(), call(fmt.Sprint(n.Add(1))), runs); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("do-hit", func(b *testing.B) {
		for b.Loop() {
			if _, err := k.Do(context.Background(), call("hit"), runs); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAutoKey(b *testing.B) {
	payload := []byte(`{"args":["push","origin","main"],"cwd":"/workspace/app","n":1.0}`)
	for b.Loop() {
		if _, err := AutoKey("git", payload, "caller"); err != nil {
			b.Fatal(err)
		}
	}
}

// A million records take what entryBytes says, and the store stops growing at
// its bounds.
func TestMemoryOfRecords(t *testing.T) {
	n := count(t, "TOOLD_IDEMPOTENCY_RECORDS", 100_000)
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	evicted := 0
	m := newMemory(n, 1<<40, func(string) { evicted++ })
	fill := func(from, to int) {
		for k := from; k < to; k++ {
			pair(t, m, int64(k))
		}
	}
	fill(0, n)
	full := heap() - before
	t.Logf("%d records take %d MiB: %d bytes each, %d by its own count", n, full>>20, full/int64(n), m.bytes/int64(n))
	if len(m.records) != n || evicted != 0 {
		t.Fatalf("%d records, %d evicted", len(m.records), evicted)
	}
	if full > m.bytes*5/4 {
		t.Errorf("it takes %d bytes and counts %d", full, m.bytes)
	}
	fill(n, 3*n)
	later := heap() - before
	if len(m.records) != n || evicted != 2*n || later > full*5/4 {
		t.Errorf("after three times as many: %d records, %d evicted, %d bytes", len(m.records), evicted, later)
	}
	// And by bytes: results of 10 KB into 10 MB.
	m = newMemory(n, 10<<20, func(string) {})
	result := bytes.Repeat([]byte("1"), 10_000)
	for k := range 5000 {
		i, c := benchClaim(int64(k))
		if _, _, v, err := m.claim(t.Context(), i, c); v != verdictRun || err != nil {
			t.Fatal(v, err)
		}
		if _, err := m.complete(t.Context(), i, completion{owner: c.owner, fence: 1, status: Completed, result: bytes.Clone(result)}); err != nil {
			t.Fatal(err)
		}
		if m.bytes > 10<<20 {
			t.Fatalf("%d bytes", m.bytes)
		}
	}
	if len(m.records) < 900 {
		t.Errorf("only %d records are left", len(m.records))
	}
}
