package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/toold/toold/host/regular"
)

// head is the content of the file head: how far the log goes.
type head struct {
	Version int    `json:"version"`
	Segment uint64 `json:"segment"`
	N       uint64 `json:"n"`
	Hash    string `json:"hash"`
	// Synced is the last record that is on disk; a crash of the machine may lose later ones.
	Synced uint64 `json:"synced"`
	// Boot identifies one boot of the machine; empty if unknown.
	Boot string `json:"boot,omitempty"`
	// Sum is the SHA-256 of the others, as JSON.
	Sum string `json:"sum"`
}

// headSize is the size of the file: one sector, which a disk writes as a whole.
const headSize = 512

func (h head) encode() ([]byte, error) {
	h.Sum = ""
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	h.Sum = hashOf(b).String()
	if b, err = json.Marshal(h); err != nil || len(b) >= headSize {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	return append(append(b, bytes.Repeat([]byte(" "), headSize-1-len(b))...), '\n'), nil
}

// missing describes what is missing, according to the head, from a log that ends with record n and the hash last;
// empty if nothing is.
func (h *head) missing(n uint64, last hash) string {
	switch {
	case h.N > n:
		return fmt.Sprintf("the log ends with record %d, but the head records %d", n, h.N)
	case h.N == n && n > 0 && h.Hash != last.String():
		return fmt.Sprintf("record %d differs from the one that the head recorded", n)
	}
	return ""
}

// readHead reads the head of the log in dir.
func readHead(dir string) (*head, error) {
	f, err := regular.OpenFile(headPath(dir), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, headSize+1))
	if err != nil {
		return nil, err
	}
	return decodeHead(b)
}

// decodeHead accepts a head only exactly as encode writes it.
func decodeHead(b []byte) (*head, error) {
	var h head
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("it is damaged: %w", err)
	}
	if again, err := h.encode(); err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("it is damaged: checksum mismatch")
	}
	return &h, nil
}

func headPath(dir string) string { return filepath.Join(dir, "head") }

// bootID identifies one boot of the machine, if the system provides that.
func bootID() string { return strings.TrimSpace(string(readBoot())) }
