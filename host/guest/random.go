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

// A guest that draws randomness while it initialises itself, as those in Go do
// for their maps, has it frozen in the image that every call begins from. It
// is therefore no secret among the calls, and nothing is lost by drawing the
// same for the same module each time: so a call takes the same fuel after a
// restart as before, and whether or not there is an image. It still is a secret
// of this host's, since whoever knew it could choose keys that collide.

// seedFile is in the cache folder, 32 bytes that nobody else reads.
const seedFile = "seed"

// loadSeed reads the seed of the cache folder dir, or makes one there.
func loadSeed(dir string, log *slog.Logger) (seed [32]byte, err error) {
	path := filepath.Join(dir, seedFile)
	for range 2 {
		b, err := regular.ReadFile(path)
		if err == nil && len(b) == len(seed) {
			return [32]byte(b), nil
		}
		if _, other := errors.AsType[regular.Error](err); other || err == nil {
			log.Warn("the seed of guests is damaged and is made anew", "file", path, "bytes", len(b), "error", err)
			err = os.RemoveAll(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return seed, fmt.Errorf("read the seed of guests: %w", err)
		}
		rand.Read(seed[:])
		// Written aside and linked, so that of two processes both use the one
		// that was first.
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

// seedOf is of what the module with this digest draws while it initialises
// itself.
func (e *Engine) seedOf(digest [32]byte) [32]byte {
	return sha256.Sum256(append(e.seed[:], digest[:]...))
}

// randomness is what a guest draws now.
func (c *call) randomness() io.Reader {
	if c.drawn != nil {
		return c.drawn
	}
	return rand.Reader
}
