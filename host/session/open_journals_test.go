package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestFewJournalsStayOpen: the journals of idle sessions stay open for the next
// call, no more than maxKept of them, and not for long.
func TestFewJournalsStayOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		for i := range maxKept + 20 {
			s := explicit(t, tab, "me")
			for n := range 2 {
				run(t, s, fmt.Sprint(i, n), false).End(fine)
			}
			s.journal.mu.Lock()
			is := s.journal.file != nil
			s.journal.mu.Unlock()
			if is != (i < maxKept) {
				t.Fatalf("journal %d stays open: %v", i, is)
			}
		}
		if n := tab.kept.Load(); n != maxKept {
			t.Errorf("%d journals stay open", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := tab.kept.Load(); n != 0 {
			t.Errorf("%d journals stay open after two idle minutes", n)
		}
	})
}
