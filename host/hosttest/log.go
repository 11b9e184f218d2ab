package hosttest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// patience is how long a test waits for a daemon.
const patience = 30 * time.Second

// logBuffer keeps the log of a daemon and signals when it grows.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer  // guarded by mu
	more chan struct{} // closed at the next Write; guarded by mu
	hold *hold         // guarded by mu
}

// hold blocks the goroutine that writes a line with these words.
type hold struct {
	words   string
	reached chan struct{} // closed when one was written
	release chan struct{} // closed when it may continue
}

func newLogBuffer() *logBuffer { return &logBuffer{more: make(chan struct{})} }

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	h := l.hold
	if h != nil && bytes.Contains(p, []byte(h.words)) {
		l.hold = nil
		l.mu.Unlock()
		close(h.reached)
		<-h.release
		l.mu.Lock()
	}
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// news returns a channel that is closed when the log grows.
func (l *logBuffer) news() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.more
}

// hasLine returns a function that reports whether there is a line with all words after
// the first bytes.
func (l *logBuffer) hasLine(after int, words []string) func() bool {
	return func() bool {
		for line := range strings.Lines(l.String()[after:]) {
			if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	}
}

// wait returns when ok, which is called whenever the log grows, returns true. It fails
// when that takes longer than most, or the daemon ends: the value of done is then put
// back for others.
func (l *logBuffer) wait(most time.Duration, ok func() bool, done chan error) error {
	late := time.NewTimer(most)
	defer late.Stop()
	for {
		more := l.news()
		if ok() {
			return nil
		}
		select {
		case <-more:
		case err := <-done:
			done <- err
			if ok() {
				return nil
			}
			return fmt.Errorf("the daemon ended: %v", err)
		case <-late.C:
			return fmt.Errorf("not so after %v", most)
		}
	}
}
