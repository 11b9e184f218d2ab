//go:build linux

package process_test

import (
	"os"
	"testing"

	"github.com/toold/toold/host/process"
)

// However much a run has its supervisor read, the supervisor's memory is bounded.
func TestMemoryOfASupervisor(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	c := probing(t, t.TempDir(), "fill", "file")
	in, gate, err := os.Pipe()
	must(t, err)
	defer in.Close()
	c.Stdin = in
	u := begin(t, r, c)
	if said := u.next(); said != "<nil>" {
		t.Fatal(said)
	}
	if h := count(t); h.childKiB > 128<<10 {
		t.Errorf("it has %d KiB", h.childKiB)
	}
	gate.Close()
	u.next() // it is done
	u.wait()
}
