package host

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/tools"
)

// binaryPath is the PATH of every binary; the caller's never counts.
const binaryPath = "/usr/local/bin:/usr/bin:/bin"

// environment is what every binary of k's tool finds, made from nothing.
func (h *Host) environment(k *call, home string) map[string]string {
	env := map[string]string{
		"PATH":   binaryPath,
		"LANG":   "C.UTF-8",
		"HOME":   home,
		"TMPDIR": filepath.Join(home, "tmp"),
	}
	if k.Trace != "" {
		env["TRACEPARENT"] = k.Trace
	}
	maps.Copy(env, k.tool.Def.Environment)
	return env
}

// confine is what a binary of k's tool may write and execute, and what it may
// not read: what is the daemon's own, and the secrets of every tool. What it is
// to know of them is in its environment.
func (h *Host) confine(k *call, home string, exec []string) process.Confine {
	c := h.config()
	hide := append([]string{c.State}, h.tools.SecretFiles()...)
	for _, file := range []string{c.File, c.DotEnv(), c.Identity.JWKS} {
		if file != "" {
			hide = append(hide, file)
		}
	}
	least, _ := process.ParseLevel(c.LeastConfinement())
	sockets := []string{c.Socket, c.Admin}
	for _, s := range c.Sockets {
		sockets = append(sockets, s.Path)
	}
	// What the operator names for the tool is to be found, wherever it is.
	var show []string
	for _, value := range k.tool.Def.Environment {
		if filepath.IsAbs(value) {
			show = append(show, filepath.Clean(value))
		}
	}
	slices.Sort(show)
	return process.Confine{
		User:    k.tool.User,
		Show:    show,
		Sockets: sockets,
		Write:   append([]string{home}, k.roots...),
		Exec:    exec,
		Hide:    hide,
		Least:   least,
	}
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// home is the HOME of one identity in one tool: nobody else's configuration,
// caches or credentials are in it.
func (h *Host) home(k *call) (string, error) {
	home := filepath.Join(h.config().State, "home", k.tool.Name, k.caller.ID)
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o700); err != nil {
		return "", fault.Errorf(fault.Internal, "make a HOME for the call: %w; see the daemon's state folder", err)
	}
	if u := k.tool.User; u != nil {
		for _, dir := range []string{home, filepath.Join(home, "tmp")} {
			if err := os.Lchown(dir, int(u.UID), int(u.GID)); err != nil {
				return "", fault.Errorf(fault.Internal, "give the HOME of the call to user %d: %w; see the daemon's state folder", u.UID, err)
			}
		}
	}
	return home, nil
}

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

// values are what is masked. Of a header "Bearer TOKEN" or "Basic USER:PASSWORD"
// in base64 that is also the part that is the secret: a server may answer with
// that alone.
func values(s []secret) [][]byte {
	var v [][]byte
	for _, s := range s {
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

// secrets reads the tool's secrets from where tool.json says they are, and
// adds those of the caller.
func (h *Host) secrets(k *call) ([]secret, error) {
	list, err := h.definedSecrets(k)
	if err != nil {
		return nil, err
	}
	for _, s := range k.effective.Secrets {
		list = append(list, secret{name: s.Name, value: s.Value, handle: s.Handle, own: s.Own})
	}
	return list, nil
}

func (h *Host) definedSecrets(k *call) ([]secret, error) {
	var list []secret
	for _, name := range slices.Sorted(maps.Keys(k.tool.Def.Secrets)) {
		s := k.tool.Def.Secrets[name]
		v, err := h.secretValue(k, s.From)
		if err != nil {
			var we *fault.Error
			if errors.As(err, &we) {
				return nil, fault.Errorf(we.Code, "secret %s of tool %s: %s", name, k.tool.Name, we.Message)
			}
			return nil, fault.Errorf(fault.ToolBroken, "secret %s of tool %s: %w", name, k.tool.Name, err)
		}
		list = append(list, secret{Secret: s, name: name, value: v})
	}
	return list, nil
}

// handOver gives the binary of k the secrets that it is to have: variables in env,
// and files in a folder of this one call. That folder, empty where there are no
// files, is in the daemon's state, which no other call reads; the caller of
// handOver makes it writable to this one, which is what lets it read there, and
// removes it.
func (h *Host) handOver(secrets []secret, env map[string]string) (dir string, err error) {
	defer func() {
		if err != nil && dir != "" {
			os.RemoveAll(dir)
		}
	}()
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
			content = strings.Replace(s.Content, tools.SecretMark, s.value, 1)
		}
		if dir == "" {
			parent := filepath.Join(h.config().State, secretsFolder)
			if err := os.MkdirAll(parent, 0o700); err != nil {
				return "", fault.Errorf(fault.Internal, "make a folder for secrets: %w; see the daemon's state folder", err)
			}
			if dir, err = os.MkdirTemp(parent, ""); err != nil {
				return "", fault.Errorf(fault.Internal, "make a folder for secrets: %w; see the daemon's state folder", err)
			}
		}
		file := filepath.Join(dir, strconv.Itoa(i))
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return dir, fault.Errorf(fault.Internal, "write a secret for the call: %w; see the daemon's state folder", err)
		}
		env[s.File] = file
	}
	return dir, nil
}

// secretsFolder is the folder in the state folder with the secrets of calls that
// run.
const secretsFolder = "secrets"

// hidden are the values that are masked in what k's tool says.
func (h *Host) hidden(k *call) [][]byte {
	secrets, _ := h.secrets(k) // without them it is not called
	return values(secrets)
}

func (h *Host) secretValue(k *call, from string) (string, error) {
	kind, name, _ := strings.Cut(from, ":")
	switch kind {
	case "env":
		if v, ok := h.config().Value(name); ok {
			return v, nil
		}
		return "", fmt.Errorf("the operator's value %s is not set; put it in .env beside toold.json or in the daemon's environment", name)
	case "file":
		f, err := config.OpenSecret(name)
		if err != nil {
			return "", fmt.Errorf("read its file: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			return "", fmt.Errorf("read its file: %w", err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	case "claim":
		if v, ok := k.caller.Claim(name); ok {
			return v, nil
		}
		return "", fault.Errorf(fault.Unauthenticated, "it comes from the claim %s, and the caller's token has none; call with a token that has", name)
	}
	return "", fmt.Errorf(`from is %q, which begins with none of "env:", "file:", "claim:"`, from)
}

// hiddenWhole is TOOL_BROKEN where a file that no binary may read has a further
// name, which cannot be hidden from one.
func (h *Host) hiddenWhole() error {
	for _, file := range append(h.tools.SecretFiles(), h.config().DotEnv()) {
		if n := config.Names(file); n > 1 {
			return fault.Errorf(fault.ToolBroken, "no binary is run, since a secret cannot be hidden from it: %w", config.SeveralNames(file, n))
		}
	}
	return nil
}

// severallyNamed are the daemon's own files that have a further name, by
// whether that is refused.
func (h *Host) severallyNamed() map[string]bool {
	c := h.config()
	found := map[string]bool{}
	look := func(file string, refused bool) {
		if config.Names(file) > 1 {
			found[file] = refused
		}
	}
	look(c.File, false)
	look(c.Identity.JWKS, false)
	look(c.DotEnv(), true)
	for _, file := range h.tools.SecretFiles() {
		look(file, true)
	}
	return found
}

// warnOfNames says which of the files that are only warned of have a further
// name.
func (h *Host) warnOfNames() {
	for file, refused := range h.severallyNamed() {
		if !refused {
			h.log.Warn("a file of the daemon has more than one name; tools can read it by another one", "file", file)
		}
	}
}
