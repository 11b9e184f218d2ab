package guest

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestSeed: whoever uses a cache folder has the same seed, also when several
// make it at once, and a damaged one is made anew.
func TestSeed(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	var seeds [16][32]byte
	var wg sync.WaitGroup
	for i := range seeds {
		wg.Go(func() {
			var err error
			if seeds[i], err = loadSeed(dir, log); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range seeds {
		if s != seeds[0] || s == ([32]byte{}) {
			t.Fatalf("seeds %x and %x", s, seeds[0])
		}
	}
	path := filepath.Join(dir, seedFile)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the seed's file: %v, %v", st, err)
	}
	if err := os.Truncate(path, 5); err != nil {
		t.Fatal(err)
	}
	anew, err := loadSeed(dir, log)
	if err != nil || anew == seeds[0] {
		t.Errorf("a damaged seed: %x, %v", anew, err)
	}
	if again, err := loadSeed(dir, log); err != nil || again != anew {
		t.Errorf("after it: %x, %v", again, err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("files are left: %v", names)
	}
}
