package catalog

import (
	"testing"
)

// BenchmarkAcquire is what pinning a generation costs each call.
func BenchmarkAcquire(b *testing.B) {
	t := newFixture(b)
	t.write(map[string]string{"module/handler.wasm": string(handler("h")), "binary/tool.json": `{"binary": "sh"}`})
	t.open()
	for _, name := range []string{"module", "binary"} {
		b.Run(name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, release, err := t.c.Acquire(b.Context(), name)
					if err != nil {
						b.Error(err)
						return
					}
					release()
				}
			})
		})
	}
}

// BenchmarkLookAgain is what the slow look costs for one tool that has not
// changed.
func BenchmarkLookAgain(b *testing.B) {
	t := newFixture(b)
	t.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p")), "t/tool.json": "{}"})
	t.open()
	for b.Loop() {
		t.look("t")
	}
}
