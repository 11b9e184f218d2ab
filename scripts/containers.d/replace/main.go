// Command replace ends with 0 where it could remove or make a file in a folder: what
// scripts/containers has an attacker in a container try.
package main

import (
	"os"
	"path/filepath"
)

func main() {
	entries, _ := os.ReadDir(os.Args[1])
	for _, e := range entries {
		if os.Remove(filepath.Join(os.Args[1], e.Name())) == nil {
			return
		}
	}
	if os.WriteFile(filepath.Join(os.Args[1], "new"), nil, 0o644) == nil {
		return
	}
	os.Exit(1)
}
