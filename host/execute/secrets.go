package execute

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/fetch"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/host/tools"
)

// secret is one of the tool's secrets with its value: one that tool.json
// defines, or one of the caller's that the configuration is overlaid with.
type secret struct {
	tools.Secret
	name  string
	value string
	// handle stands for the value in the guest's configuration; empty for one
	// that tool.json defines. own: the caller's token brought it.
	handle string
	own    bool
}

// values returns the texts that are masked. For a header "Bearer TOKEN" or "Basic
// USER:PASSWORD" in base64 these include the secret part alone, since a server may
// answer with that.
func values(s []secret) [][]byte {
	var v [][]byte
	for _, s := range s {
		if _, ok := s.InAgent(); ok { // the daemon does not have it
			continue
		}
		if s.SSHKey || s.SSHSign {
			v = append(v, keysIn(s.value)...)
		}
		if s.SigV4 != nil { // the access key is no secret
			for i, part := range strings.SplitN(s.value, ":", 3) {
				if i > 0 {
					v = append(v, []byte(part))
				}
			}
			continue
		}
		if s.TLS != "" {
			v = append(v, keysIn(s.value)...)
			if s.TLS != tools.TLSKey {
				continue // certificates are no secret
			}
		}
		v = append(v, []byte(s.value))
		scheme, credentials, ok := strings.Cut(strings.TrimSpace(s.value), " ")
		if s.Header == "" || !ok {
			continue
		}
		credentials = strings.TrimSpace(credentials)
		v = append(v, []byte(credentials))
		if !strings.EqualFold(scheme, "Basic") {
			continue
		}
		if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil {
			_, password, _ := strings.Cut(string(plain), ":")
			v = append(v, plain, []byte(password))
		}
	}
	return v
}

// vault reads the secrets of tools, from their sources each time.
type vault struct {
	config func() *config.Config // in force
	files  func() []string       // in which tools have secrets
}

// secrets reads the tool's secrets from where tool.json says they are, and
// adds those of the caller.
func (k *vault) secrets(p *call.Pinned) ([]secret, error) {
	list, err := k.definedSecrets(p.Tool, p.Caller)
	if err != nil {
		return nil, err
	}
	for _, s := range p.Effective.Secrets {
		list = append(list, secret{name: s.Name, value: s.Value, handle: s.Handle, own: s.Own})
	}
	return list, nil
}

// SecretValues returns the values of the secrets that tool.json defines, by name, for
// one caller.
func (k *vault) SecretValues(t *tools.Tool, caller identity.Caller) (map[string]string, error) {
	list, err := k.definedSecrets(t, caller)
	if err != nil {
		return nil, err
	}
	m := map[string]string{}
	for _, s := range list {
		m[s.name] = s.value
	}
	return m, nil
}

// Masker returns a function that masks the secrets of p, which may be nil, and
// further ones. It is nil if there are none.
func (k *vault) Masker(p *call.Pinned, further ...string) (func(string) string, error) {
	var list []secret
	if p != nil {
		var err error
		if list, err = k.secrets(p); err != nil {
			return nil, err
		}
	}
	hidden := values(list)
	for _, s := range further {
		hidden = append(hidden, []byte(s))
	}
	if len(hidden) == 0 {
		return nil, nil
	}
	m := sync.OnceValue(func() *mask.Masker { return mask.New(hidden) })
	return func(text string) string {
		if m := m(); m != nil {
			return string(m.Bytes([]byte(text)))
		}
		return text
	}, nil
}

func (k *vault) definedSecrets(t *tools.Tool, caller identity.Caller) ([]secret, error) {
	var list []secret
	for _, name := range slices.Sorted(maps.Keys(t.Def.Secrets)) {
		s := t.Def.Secrets[name]
		v, err := k.secretValue(caller, s)
		if err != nil {
			var we *fault.Error
			if errors.As(err, &we) {
				return nil, fault.Errorf(we.Code, "secret %s of tool %s: %s", name, t.Name, we.Message)
			}
			return nil, fault.Errorf(fault.ToolBroken, "secret %s of tool %s: %w", name, t.Name, err)
		}
		list = append(list, secret{Secret: s, name: name, value: v})
	}
	return list, nil
}

// MissingSecret returns why a secret of t that the operator provides cannot be read,
// so that every call of t is refused; nil if all can. Secrets from the caller's token
// are not checked.
func (k *vault) MissingSecret(t *tools.Tool) error {
	for _, name := range slices.Sorted(maps.Keys(t.Def.Secrets)) {
		s := t.Def.Secrets[name]
		if strings.HasPrefix(s.From, "claim:") {
			continue
		}
		v, err := k.secretValue(identity.Caller{}, s)
		if err == nil && s.SigV4 != nil {
			_, err = sigv4.New(s.SigV4.Service, s.SigV4.Region, v)
		}
		if err != nil {
			return fmt.Errorf("secret %s of tool %s: %w", name, t.Name, err)
		}
	}
	return nil
}

// handOver gives the binary of t its secrets: variables in env, and files in a
// folder for this one call. dir is that folder, or empty if there are no files. It
// is in the daemon's state, which no other call can read. The caller of handOver
// grants the binary write access to it, which includes reading, and removes it,
// even after an error.
func (k *vault) handOver(t *tools.Tool, secrets []secret, env map[string]string) (dir string, err error) {
	write := func(name string, content []byte) (string, error) {
		if dir == "" {
			parent := filepath.Join(k.config().State, secretsFolder)
			if err := os.MkdirAll(parent, 0o700); err != nil {
				return "", fault.Errorf(fault.Internal, "make a folder for secrets: %w; see the daemon's state folder", err)
			}
			if dir, err = os.MkdirTemp(parent, ""); err != nil {
				return "", fault.Errorf(fault.Internal, "make a folder for secrets: %w; see the daemon's state folder", err)
			}
		}
		file := filepath.Join(dir, name)
		err := os.WriteFile(file, content, 0o600)
		if u := t.User; u != nil {
			for _, path := range []string{dir, file} {
				err = errors.Join(err, os.Lchown(path, int(u.UID), int(u.GID)))
			}
		}
		if err != nil {
			return "", fault.Errorf(fault.Internal, "write a secret for the call: %w; see the daemon's state folder", err)
		}
		return file, nil
	}
	for i, s := range secrets {
		if s.Env != "" {
			env[s.Env] = s.value
		}
		if s.File == "" {
			continue
		}
		content := s.value
		if s.Content != "" {
			if strings.ContainsFunc(s.value, unicode.IsControl) {
				return dir, fault.Errorf(fault.ToolBroken, "secret %s: it holds a line break or another control character, and would be more than one value in its content", s.name)
			}
			content = s.Fill(s.value)
		}
		file, err := write(strconv.Itoa(i), []byte(content))
		if err != nil {
			return dir, err
		}
		env[s.File] = file
	}
	return dir, nil
}

// secretsFolder is the folder in the state folder with the secrets of running calls.
const secretsFolder = "secrets"

// hidden returns the values that are masked in the output of p's tool.
func (k *vault) hidden(p *call.Pinned) [][]byte {
	secrets, _ := k.secrets(p) // without its secrets the tool is not called
	return values(secrets)
}

// secretValue returns the value of s for caller: an operator's variable, the text of a file, a claim of the token, or
// the name of a key that an agent holds.
func (k *vault) secretValue(caller identity.Caller, s tools.Secret) (string, error) {
	kind, name, _ := strings.Cut(s.From, ":")
	switch kind {
	case "env":
		if v, ok := k.config().Value(name); ok {
			return v, nil
		}
		return "", fmt.Errorf("the operator's value %s is not set; put it in .env beside toold.json or in the daemon's environment", name)
	case "file":
		open := config.OpenSecret
		if s.TLS == tools.TLSCA || s.TLS == tools.TLSCert { // these are public, and may have several names
			open = regular.Open
		}
		f, err := open(name)
		if err != nil {
			return "", fmt.Errorf("read its file: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			return "", fmt.Errorf("read its file: %w", err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	case "agent":
		if _, ok := k.config().Value(agentSocket); !ok {
			return "", fmt.Errorf("the operator's value %s, the socket of the agent with the key, is not set; put it in .env beside toold.json or in the daemon's environment", agentSocket)
		}
		return name, nil
	case "claim":
		if v, ok := caller.Claim(name); ok {
			return v, nil
		}
		return "", fault.Errorf(fault.Unauthenticated, "it comes from the claim %s, and the caller's token has none; call with a token that has", name)
	}
	return "", fmt.Errorf(`from is %q, which begins with none of "env:", "file:", "claim:", "agent:"`, s.From)
}

// hiddenWhole returns TOOL_BROKEN if a file that no binary may read has another name,
// since that cannot be hidden.
func (k *vault) hiddenWhole() error {
	for _, file := range append(k.files(), k.config().DotEnv()) {
		if n := config.Names(file); n > 1 {
			return fault.Errorf(fault.ToolBroken, "no binary is run, since a secret cannot be hidden from it: %w", config.SeveralNames(file, n))
		}
	}
	return nil
}

// tlsOf returns a tool's TLS settings by host, from its secrets and from granted.
func tlsOf(granted *tools.HTTP, secrets []secret) []*fetch.TLS {
	hosts := map[string]*fetch.TLS{}
	var list []*fetch.TLS
	of := func(host string) *fetch.TLS {
		host = strings.ToLower(host)
		if hosts[host] == nil {
			hosts[host] = &fetch.TLS{Host: host}
			list = append(list, hosts[host])
		}
		return hosts[host]
	}
	for _, s := range secrets {
		switch s.TLS {
		case tools.TLSCA:
			of(s.Host).CA = fetch.PEM{Name: s.name, Text: s.value}
		case tools.TLSCert:
			of(s.Host).Cert = fetch.PEM{Name: s.name, Text: s.value}
		case tools.TLSKey:
			of(s.Host).Key = fetch.PEM{Name: s.name, Text: s.value}
		}
	}
	if granted == nil { // a binary's requests
		return list
	}
	for host, t := range granted.TLS {
		h := of(host)
		h.ServerName, h.Insecure = t.ServerName, t.InsecureSkipVerify
	}
	return list
}

// keysIn returns the private keys in a PEM text, decoded as well: a key may be
// printed with other line breaks, and is then found by its base64.
func keysIn(text string) (keys [][]byte) {
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if strings.Contains(block.Type, "PRIVATE KEY") {
			keys = append(keys, block.Bytes, pem.EncodeToMemory(block))
		}
	}
	return keys
}

// agentSocket is the operator's value that names the socket of the daemon's agent.
const agentSocket = "SSH_AUTH_SOCK"
