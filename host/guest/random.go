package guest

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/regular"
)

// Randomness that a guest draws during initialization, as Go modules do for their maps,
// is frozen in the image that every call starts from. So it is not a secret between
// calls, and nothing is lost by giving the same module the same randomness each time: a
// call then uses the same fuel after a restart as before, and with or without an image.
// It remains a secret of this host, since whoever knew it could choose keys that
// collide.

// seedFile is the file in the cache folder with the seed: 32 bytes, readable only by
// its owner.
const seedFile = "seed"

// loadSeed reads the seed from the cache folder dir, creating it if necessary.
func loadSeed(dir string, log *slog.Logger) (seed [32]byte, err error) {
	path := filepath.Join(dir, seedFile)
	for range 2 {
		b, err := regular.ReadFile(path)
		if err == nil && len(b) == len(seed) {
			return [32]byte(b), nil
		}
		if _, other := errors.AsType[regular.Error](err); other || err == nil {
			log.Warn("the seed of guests is damaged and was replaced", "file", path, "bytes", len(b), "error", err)
			err = os.RemoveAll(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return seed, fmt.Errorf("read the seed of guests: %w", err)
		}
		rand.Read(seed[:])
		// Write a temporary file and link it, so that of two processes both use the
		// seed that was first.
		f, err := os.CreateTemp(dir, seedFile+"-*")
		if err != nil {
			return seed, fmt.Errorf("make the seed of guests: %w", err)
		}
		_, err = f.Write(seed[:])
		err = errors.Join(err, f.Close())
		if err == nil {
			err = os.Link(f.Name(), path)
		}
		os.Remove(f.Name())
		if err == nil {
			return seed, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return seed, fmt.Errorf("make the seed of guests: %w", err)
		}
	}
	return seed, fmt.Errorf("make the seed of guests: %s comes and goes", path)
}

// seedOf returns the seed of the randomness that the module with this digest draws
// during initialization.
func (e *Engine) seedOf(digest [32]byte) [32]byte {
	return sha256.Sum256(append(e.seed[:], digest[:]...))
}

// randomness returns the source of randomness for the guest's current state.
func (c *call) randomness() io.Reader {
	if c.drawn != nil {
		return c.drawn
	}
	return rand.Reader
}
