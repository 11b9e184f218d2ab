package hosttest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// patience is how long a daemon has for what it is waited for.
const patience = 30 * time.Second

// logBuffer keeps what a daemon says and tells when it says more.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer  // guarded by mu
	more chan struct{} // closed at the next Write; guarded by mu
	hold *hold         // guarded by mu
}

// hold keeps who writes a line with these words from going on.
type hold struct {
	words   string
	reached chan struct{} // closed when somebody has written one
	release chan struct{} // closed when it may go on
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

// news is closed when the daemon says more than it has said by now.
func (l *logBuffer) news() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.more
}

// hasLine asks whether there is a line with all words after the first bytes.
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

// wait returns when ok does, which is asked whenever there is more. It fails
// when that takes longer than most, or the daemon ends: what done then answers
// is put back for others.
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
