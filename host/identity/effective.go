package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
)

// Overlay is a tool's configuration and the claims that overlay it.
type Overlay struct {
	Tool string
	// Version is a digest of everything the tool was loaded from.
	Version string
	Config  map[string]string
	// Claims overlay Config by name; so do those in Secret, whose values are
	// hidden from the guest.
	Claims, Secret []string
	// Values are the tool's further secrets, by name.
	Values map[string]string
	// Settings is a digest of the parts of the daemon's configuration that matter for
	// the tool.
	Settings string
}

// Secret is a value that a guest gets as a handle only.
type Secret struct {
	Name string
	// Handle is what config_get returns instead of Value. Each call has a new
	// one.
	Handle, Value string
	// Own reports that the value came from the caller's token. Otherwise the
	// operator set it, and it is sent only to hosts named without a wildcard.
	Own bool
}

// Effective is a caller's resolved configuration of one tool.
type Effective struct {
	// Config is the tool's, overlaid by the claims; secrets are handles there.
	Config map[string]string
	// ReadOnly reports that the configuration or the token restricts the caller
	// to reading. A claim cannot lift a restriction of the configuration.
	ReadOnly bool
	Secrets  []Secret
	// Shown are the overlaying claims that are not secret.
	Shown map[string]string

	overlay Overlay
	key     []byte
}

// Effective overlays a tool's configuration with the claims of c.
func (r *Resolver) Effective(c Caller, o Overlay) *Effective {
	e := &Effective{Config: o.Config, overlay: o, key: r.key}
	base, narrowed := o.Config[readOnly]
	e.ReadOnly = c.ReadOnly || isReadOnly(base, narrowed)
	if len(o.Claims) == 0 && len(o.Secret) == 0 && e.ReadOnly == narrowed {
		return e
	}
	e.Config = maps.Clone(o.Config)
	if e.Config == nil {
		e.Config = map[string]string{}
	}
	for _, name := range o.Claims {
		if name == readOnly || slices.Contains(o.Secret, name) {
			continue
		}
		if v, ok := c.Claim(name); ok {
			e.Config[name] = v
			if e.Shown == nil {
				e.Shown = map[string]string{}
			}
			e.Shown[name] = v
		}
	}
	if e.ReadOnly {
		e.Config[readOnly] = "true"
	}
	for _, name := range o.Secret {
		s := Secret{Name: name}
		s.Value, s.Own = c.Claim(name)
		if !s.Own {
			s.Value = o.Config[name]
		}
		if s.Value == "" { // an empty password is valid and needs no handle
			e.Config[name] = ""
			continue
		}
		var nonce [12]byte
		rand.Read(nonce[:])
		s.Handle = "secret:" + hex.EncodeToString(nonce[:])
		e.Secrets = append(e.Secrets, s)
		e.Config[name] = s.Handle
	}
	return e
}

// Fingerprint returns 32 hexadecimal digits that are equal exactly if the tool,
// its version, the resolved configuration with its secrets, and the settings
// of the daemon that count are equal. It is an HMAC under the host's key, so
// that passwords cannot be guessed offline.
func (e *Effective) Fingerprint() string {
	m := hmac.New(sha256.New, e.key)
	writeFields(m, "effective", e.overlay.Tool, e.overlay.Version, e.overlay.Settings, strconv.FormatBool(e.ReadOnly))
	resolved := e.Config
	if len(e.Secrets) > 0 { // their values, not their handles
		resolved = maps.Clone(e.Config)
		for _, s := range e.Secrets {
			resolved[s.Name] = s.Value
		}
	}
	for _, part := range []map[string]string{resolved, e.overlay.Values} {
		writeFields(m, strconv.Itoa(len(part)))
		for _, name := range slices.Sorted(maps.Keys(part)) {
			writeFields(m, name, part[name])
		}
	}
	return hex.EncodeToString(m.Sum(nil)[:16])
}
