package tools

import (
	"maps"
	"testing"

	"github.com/toold/toold/host/guest"
)

// TestManifestPaths: what a manifest does not mark is written, as in Extism.
func TestManifestPaths(t *testing.T) {
	for _, tt := range []struct {
		paths map[string]string
		want  map[string]File
	}{
		{map[string]string{"ro:/srv": "/data", "/tmp/x/": "/tmp"}, map[string]File{"/data": {"/srv", "ro"}, "/tmp": {"/tmp/x", "rw"}}},
		{map[string]string{"srv": "/data"}, nil},
		{map[string]string{"/srv": "data"}, nil},
	} {
		d := DefaultDefinition()
		err := d.ApplyManifest(&guest.Manifest{AllowedPaths: tt.paths}, nil)
		if got := d.Capabilities.Files; (err == nil) != (tt.want != nil) || err == nil && !maps.Equal(got, tt.want) {
			t.Errorf("%v: got %v, %v", tt.paths, got, err)
		}
	}
}
