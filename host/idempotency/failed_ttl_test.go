package idempotency

import (
	"testing"
	"time"
)

// A failure is kept for the completion's failedTTL, on every store.
func TestFailureIsKeptAsLongAsItSays(t *testing.T) {
	each(t, func(t *testing.T, s subject) {
		for _, tt := range []struct {
			name           string
			keep, after    time.Duration
			whole, another verdict
		}{
			{"the default", 0, 29 * time.Second, verdictReplay, verdictRun},
			{"five minutes", 5 * time.Minute, 4*time.Minute + 59*time.Second, verdictReplay, verdictRun},
			{"not at all", -1, 0, verdictRun, verdictHeld},
			{"never longer than its key", time.Hour, testTTL - time.Second, verdictReplay, verdictRun},
		} {
			x := steps{t, s, id{"tool", "key of " + tt.name}}
			r := x.claims(testClaim("a"), verdictRun)
			x.ends(completion{owner: "a", fence: r.Fence, status: Failed, err: &Failure{Code: "NO"}, failedTTL: tt.keep}, verdictDone)
			s.age(t, x.id, tt.after)
			x.claims(testClaim("b"), tt.whole)
			s.age(t, x.id, 2*time.Second)
			x.claims(testClaim("c"), tt.another)
		}
	})
}
