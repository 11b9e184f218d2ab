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

// Overlay is what a tool says of the identities that call it.
type Overlay struct {
	Tool string
	// Version names all that the tool was made of.
	Version string
	Config  map[string]string
	// Claims overlay Config by name; so do those in Secret, whose values are
	// not shown to the guest.
	Claims, Secret []string
	// Values are the tool's further secrets, by name.
	Values map[string]string
	// Generation is that of the daemon's configuration.
	Generation uint64
}

// Secret is one value that a guest sees only a handle of.
type Secret struct {
	Name string
	// Handle is what config_get answers in the place of Value. It is another
	// one in each call.
	Handle, Value string
	// Own says that the caller's token brought the value. One that is not its
	// own came from the operator, and goes where the operator named the host.
	Own bool
}

// Effective is what one caller is to one tool.
type Effective struct {
	// Config is the tool's under the claims; secrets are handles there.
	Config map[string]string
	// ReadOnly says that the configuration or the token narrows the caller to
	// reading. A claim cannot take back what the configuration says.
	ReadOnly bool
	Secrets  []Secret
	// Shown are the claims that overlay the configuration and are no secret.
	Shown map[string]string

	overlay Overlay
	key     []byte
}

// Effective overlays a tool's configuration with the claims of c.
func (r *Resolver) Effective(c Caller, o Overlay) *Effective {
	e := &Effective{Config: o.Config, overlay: o, key: r.key}
	base, narrowed := o.Config[readOnly]
	e.ReadOnly = c.ReadOnly || narrows(base, narrowed)
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
		if s.Value == "" { // an empty password is one, and hides nothing
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

// Fingerprint is 32 hexadecimal digits that are equal exactly where the tool,
// its version, the resolved configuration with its secrets, and the
// generation of the daemon's configuration are. It is an HMAC under the host's
// key: nobody can try passwords on it.
func (e *Effective) Fingerprint() string {
	m := hmac.New(sha256.New, e.key)
	field(m, "effective", e.overlay.Tool, e.overlay.Version, strconv.FormatUint(e.overlay.Generation, 10), strconv.FormatBool(e.ReadOnly))
	resolved := e.Config
	if len(e.Secrets) > 0 { // their values, not their handles
		resolved = maps.Clone(e.Config)
		for _, s := range e.Secrets {
			resolved[s.Name] = s.Value
		}
	}
	for _, part := range []map[string]string{resolved, e.overlay.Values} {
		field(m, strconv.Itoa(len(part)))
		for _, name := range slices.Sorted(maps.Keys(part)) {
			field(m, name, part[name])
		}
	}
	return hex.EncodeToString(m.Sum(nil)[:16])
}
