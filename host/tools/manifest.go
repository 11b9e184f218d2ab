package tools

import (
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/toold/toold/host/guest"
)

// ApplyManifest takes from an Extism manifest what the tool.json of d, data, does not
// set, so that a stock Extism plugin is a tool without changes. data is nil if there is
// no tool.json. The error is a verb phrase that follows the name of the manifest.
func (d *Definition) ApplyManifest(m *guest.Manifest, data []byte) error {
	says := func(pointer string) bool { return data != nil && has(data, pointer) }
	if m.MemoryBytes > 0 && !says("/limits/memory") {
		d.Limits.Memory = min(Size(m.MemoryBytes), maxMemory)
	}
	if m.Timeout > 0 && !says("/timeout") {
		d.Timeout = min(Seconds(m.Timeout.Seconds()), maxTimeout)
	}
	if len(m.AllowedHosts) > 0 && !says("/capabilities/http") {
		for _, h := range m.AllowedHosts {
			if !validHost(h, true) {
				return fmt.Errorf(`allows the host %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, h)
			}
		}
		d.Capabilities.HTTP = &HTTP{Hosts: m.AllowedHosts, Methods: []string{"*"}}
	}
	if len(m.AllowedPaths) > 0 && !says("/capabilities/files") {
		d.Capabilities.Files = map[string]File{}
		for host, guestPath := range m.AllowedPaths {
			mode := "rw"
			if h, ok := strings.CutPrefix(host, "ro:"); ok {
				host, mode = h, "ro"
			}
			if !path.IsAbs(host) || !path.IsAbs(guestPath) {
				return fmt.Errorf("maps %q to %q in allowed_paths; both must be absolute paths", host, guestPath)
			}
			d.Capabilities.Files[path.Clean(guestPath)] = File{Path: path.Clean(host), Mode: mode}
		}
	}
	if m.StateBytes > 0 && !says("/capabilities/state") {
		d.Capabilities.State = min(Size(m.StateBytes), maxState)
	}
	config := maps.Clone(m.Config)
	if config == nil {
		config = map[string]string{}
	}
	maps.Copy(config, d.Config)
	d.Config = config
	return nil
}
