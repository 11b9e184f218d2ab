package idempotency

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func benchClaim(n int64) (id, claiming) {
	return id{"tool", fmt.Sprintf("%064d", n)}, claiming{owner: fmt.Sprint(n), payload: "p", ttl: 86_400_000, lease: 15_000}
}

// pair is what a call asks of its store.
func pair(b testing.TB, s store, n int64) {
	i, c := benchClaim(n)
	r, _, v, err := s.claim(context.Background(), i, c)
	if err != nil || v != verdictRun {
		b.Fatal(v, err)
	}
	v, err = s.end(context.Background(), i, ending{owner: c.owner, fence: r.Fence, status: Completed, result: []byte(`{"exitCode":0,"stdout":"hello"}`)})
	if err != nil || v != verdictDone {
		b.Fatal(v, err)
	}
}

func BenchmarkFile(b *testing.B) {
	dir := b.TempDir()
	plain := func(b *testing.B) *os.File {
		f, err := os.Create(filepath.Join(dir, "plain"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })
		return f
	}
	b.Run("synced-appends", func(b *testing.B) {
		f := plain(b)
		for b.Loop() {
			for range 2 {
				if _, err := f.Write(make([]byte, 300)); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("bbolt-puts", func(b *testing.B) {
		db, err := bolt.Open(filepath.Join(dir, "bolt"), 0o600, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		n := 0
		for b.Loop() {
			for range 2 {
				n++
				err := db.Update(func(tx *bolt.Tx) error {
					bk, err := tx.CreateBucketIfNotExists([]byte("b"))
					if err != nil {
						return err
					}
					return bk.Put(fmt.Appendf(nil, "%064d", n/2), make([]byte, 300))
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	s, err := openFile(filepath.Join(dir, "store"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	var n atomic.Int64
	b.Run("claim-end", func(b *testing.B) {
		for b.Loop() {
			pair(b, s, n.Add(1))
		}
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
