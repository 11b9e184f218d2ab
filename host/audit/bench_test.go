package audit

import (
	"path/filepath"
	"testing"
)

// BenchmarkAddSync is a record that is on the disk when it is answered, of one
// call at a time and of many: these share their syncs.
func BenchmarkAddSync(b *testing.B) {
	for _, bb := range []struct {
		name string
		at   int
	}{{"1", 1}, {"8", 8}, {"64", 64}} {
		b.Run(bb.name, func(b *testing.B) {
			l := open(b, filepath.Join(b.TempDir(), "audit"), on)
			b.SetParallelism(bb.at) // for each processor
			if bb.at == 1 {
				for i := 0; b.Loop(); i++ {
					if _, err := l.AddSync(b.Context(), 100, begin(i)); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := l.AddSync(b.Context(), 100, begin(i)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkAdd is what a call pays that needs no sync.
func BenchmarkAdd(b *testing.B) {
	l := open(b, filepath.Join(b.TempDir(), "audit"), on)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Add(100, end(i, 0))
	}
}
