package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestOpenIdleJournalsAreBounded: the journals of idle sessions stay open for the next
// call, at most maxOpenIdle of them, and not for long.
func TestOpenIdleJournalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		for i := range maxOpenIdle + 20 {
			s := explicit(t, tab, "me")
			for n := range 2 {
				run(t, s, fmt.Sprint(i, n), false).End(fine)
			}
			s.journal.mu.Lock()
			is := s.journal.file != nil
			s.journal.mu.Unlock()
			if is != (i < maxOpenIdle) {
				t.Fatalf("journal %d stays open: %v", i, is)
			}
		}
		if n := tab.openIdle.Load(); n != maxOpenIdle {
			t.Errorf("%d journals stay open", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := tab.openIdle.Load(); n != 0 {
			t.Errorf("%d journals stay open after two idle minutes", n)
		}
	})
}
