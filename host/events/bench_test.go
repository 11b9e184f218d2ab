package events

import "testing"

// BenchmarkFanOut is what a call's four events cost with four watchers of its session:
// to publish them, and for each watcher to have them as JSON.
func BenchmarkFanOut(b *testing.B) {
	h := NewHub(Limits{})
	defer h.Close()
	var watchers []*Watcher
	for range 4 {
		w, err := h.Watch(Filter{Owner: "alice", Session: "s"}, "")
		if err != nil {
			b.Fatal(err)
		}
		w.Next(b.Context())
		watchers = append(watchers, w)
	}
	list := []Event{
		{Kind: Begin, Execution: "e", Tool: "git", Type: "call"}, {Kind: Attempt, Execution: "e", Attempt: 1},
		{Kind: Output, Execution: "e", Tool: "git", Stream: "stdout", Data: []byte("a line\n"), Bytes: 7, LastLine: "a line"},
		{Kind: End, Execution: "e", Tool: "git", Type: "call", Status: "success", Attempts: 1, DurationMS: 12, BytesOut: 7},
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, e := range list {
			e.Owner, e.Session = "alice", "s"
			h.Publish(e)
		}
		for _, w := range watchers {
			var e Event
			for n, more := 0, true; ; n++ {
				if e, more = w.More(); !more {
					if n != len(list) {
						b.Fatalf("%d events", n)
					}
					break
				}
				e.JSON()
			}
		}
	}
}
