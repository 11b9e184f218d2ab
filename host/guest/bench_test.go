package guest

import (
	"context"
	"testing"
)

func BenchmarkCall(b *testing.B) {
	in := []byte(`{"tool":"git","args":["push","origin","main"],"cwd":"/workspace/project"}`)
	for _, w := range []string{"scan", "pagemap", "image", "fresh"} {
		b.Run(w, func(b *testing.B) {
			b.Setenv(restoreVariable, w)
			m := kitchen(b)
			var pages int
			for b.Loop() {
				r, err := m.Call(context.Background(), Invocation{Export: "check", Input: in})
				if err != nil {
					b.Fatal(err)
				}
				pages = r.Stats.PagesRestored
			}
			b.ReportMetric(float64(pages), "pages")
		})
	}
}
