package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestOpenIdleJournalsAreBounded: the journals of idle sessions stay open for the next
// call, at most 128 of them, and not for long.
func TestOpenIdleJournalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		const most = 128
		for i := range most + 20 {
			s := explicit(t, tab, "me")
			for n := range 2 {
				run(t, s, fmt.Sprint(i, n), false).End(fine)
			}
			if n := int(tab.openIdle.Load()); n != min(i+1, most) {
				t.Fatalf("after %d, %d journals stay open", i+1, n)
			}
		}
		if n := tab.openIdle.Load(); n != most {
			t.Errorf("%d journals stay open", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := tab.openIdle.Load(); n != 0 {
			t.Errorf("%d journals stay open after two idle minutes", n)
		}
	})
}
