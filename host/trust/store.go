package trust

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/inode"
	"github.com/toold/toold/host/regular"
)

// Variables with the file of the authorities that programs trust. Those of extra are
// in addition to what the program trusts anyway.
var (
	insteadVariables = []string{"GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "NPM_CONFIG_CAFILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}
	extraVariables   = []string{"NODE_EXTRA_CA_CERTS"}
)

// systemTrust are the files in which systems have their authorities, as crypto/x509
// looks for them.
var systemTrust = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// Trust is an authority, and files that make programs trust it in addition to what they would
// trust anyway. It does not change, and no tool can change it.
type Trust struct {
	Authority *Authority
	// Env are the variables that name the files, for the programs.
	Env map[string]string
	// Files are what the programs have to be able to read.
	Files []string

	dir  string
	of   string // what it was made of
	made time.Time

	// uses are the calls that have it; left says that no other gets it. Guarded by
	// Store.mu.
	uses int
	left bool
}

// Store keeps the Trusts of tools. Calls of one tool share one, since making it takes as long
// as the rest of a short call. The zero value is empty.
type Store struct {
	mu    sync.Mutex
	kept  map[string]*Trust // by the tool's name
	pools map[string]pool   // as kept
}

// pool is a pool of authorities for verifying hosts, with the sources that it was made from.
type pool struct {
	*x509.CertPool
	of string
}

// Take returns the Trust for programs of the tool, whose requests to hosts are intercepted,
// valid until release is called. environment is that of tool.json. Files are in the folder
// state.
func (s *Store) Take(state, tool string, environment map[string]string, hosts []string) (_ *Trust, release func(), err error) {
	sources, of, err := sourcesOf(tool, environment)
	if err != nil {
		return nil, nil, err
	}
	of += strings.Join(hosts, "\n")
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, had := range s.kept {
		if time.Since(had.made) > authorityUse || name == tool && (had.of != of || !had.isThere()) {
			delete(s.kept, name)
			had.leave()
		}
	}
	have := s.kept[tool]
	if have == nil {
		if have, err = makeTrust(state, tool, hosts, sources); err != nil {
			return nil, nil, err
		}
		have.of = of
		if s.kept == nil {
			s.kept = map[string]*Trust{}
		}
		s.kept[tool] = have
	}
	have.uses++
	return have, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if have.uses--; have.left {
			have.leave()
		}
	}, nil
}

// leave removes the files of t once no call uses them.
func (t *Trust) leave() {
	if t.left = true; t.uses == 0 {
		os.RemoveAll(t.dir)
	}
}

func (t *Trust) isThere() bool {
	for _, file := range t.Files {
		if _, err := os.Lstat(file); err != nil {
			return false
		}
	}
	return true
}

// source is the location of the authorities that variables name by default.
type source struct {
	variables []string
	file      string // empty: no further ones
	system    bool
}

// sourcesOf returns the sources of a tool, with stamps that change when they do.
func sourcesOf(tool string, environment map[string]string) (list []*source, of string, err error) {
	type place struct {
		file   string
		system bool
	}
	bySource := map[place]*source{}
	var b strings.Builder
	add := func(variable, file string, system bool) error {
		key := place{file, system}
		if known := bySource[key]; known != nil {
			known.variables = append(known.variables, variable)
			return nil
		}
		s := &source{[]string{variable}, file, system}
		bySource[key] = s
		list = append(list, s)
		fmt.Fprintf(&b, "%s %q", variable, file)
		if file != "" {
			info, err := os.Stat(file)
			if err != nil {
				return cannotTrust(tool, variable, err)
			}
			stamp, _ := stampOf(info)
			b.WriteString(stamp)
		}
		b.WriteByte('\n')
		return nil
	}
	system := systemFile()
	for _, name := range insteadVariables {
		file := environment[name]
		if err := add(name, cmp.Or(file, system), file == ""); err != nil {
			return nil, "", err
		}
	}
	for _, name := range extraVariables {
		if err := add(name, environment[name], false); err != nil {
			return nil, "", err
		}
	}
	return list, b.String(), nil
}

func makeTrust(state, tool string, hosts []string, sources []*source) (_ *Trust, err error) {
	made := &Trust{Env: map[string]string{}, made: time.Now()}
	if made.Authority, err = NewAuthority(hosts); err != nil {
		return nil, fault.Errorf(fault.Internal, "make a certificate authority for %s: %w", tool, err)
	}
	parent := filepath.Join(state, Folder)
	if err = os.MkdirAll(parent, 0o755); err == nil {
		if made.dir, err = os.MkdirTemp(parent, ""); err == nil {
			err = os.Chmod(made.dir, 0o755)
		}
	}
	defer func() {
		if err != nil && made.dir != "" {
			os.RemoveAll(made.dir)
		}
	}()
	if err != nil {
		return nil, fault.Errorf(fault.Internal, "make a folder for what %s is to trust: %w; see the daemon's state folder", tool, err)
	}
	for i, s := range sources {
		var content []byte
		switch {
		case s.system && s.file != "":
			content, err = regular.ReadFile(s.file)
			content = append(bytes.TrimRight(content, "\n"), '\n')
		case s.file != "":
			content, err = certificates(s.file)
		}
		if err != nil {
			return nil, cannotTrust(tool, s.variables[0], err)
		}
		file := filepath.Join(made.dir, strconv.Itoa(i)+".pem")
		err = os.WriteFile(file, append(content, made.Authority.PEM()...), 0o444)
		if err = errors.Join(err, os.Chmod(file, 0o444)); err != nil { // whatever the umask
			return nil, fault.Errorf(fault.Internal, "write what %s is to trust: %w; see the daemon's state folder", tool, err)
		}
		made.Files = append(made.Files, file)
		for _, name := range s.variables {
			made.Env[name] = file
		}
	}
	return made, nil
}

// Folder is the folder in the state folder with the files of trusts.
const Folder = "trust"

// Roots returns the authorities by which hosts are verified for a tool: the system's and those
// that its environment makes its programs trust; nil means the system's alone. Changed files
// are read again. The pool is shared, and must not be changed.
func (s *Store) Roots(tool string, environment map[string]string) (*x509.CertPool, error) {
	of, settled, err := own(tool, environment)
	if of == "" || err != nil {
		return nil, err
	}
	s.mu.Lock()
	have := s.pools[tool]
	s.mu.Unlock()
	if have.of == of {
		return have.CertPool, nil
	}
	all, err := x509.SystemCertPool()
	if err != nil {
		return nil, fault.Errorf(fault.ToolBroken, "environment of tool %s: read the system's authorities: %w", tool, err)
	}
	for _, name := range slices.Concat(insteadVariables, extraVariables) {
		if file := environment[name]; file != "" {
			b, err := certificates(file)
			if err != nil {
				return nil, cannotTrust(tool, name, err)
			}
			all.AppendCertsFromPEM(b)
		}
	}
	// What has changed while it was read, or could change without showing, is for this
	// call only.
	if again, _, err := own(tool, environment); err == nil && again == of && settled {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pools == nil {
			s.pools = map[string]pool{}
		}
		s.pools[tool] = pool{all, of}
	}
	return all, nil
}

// own tells the files of authorities that an environment names from what they were
// before, and whether it would tell them from what they will be; of is empty where there
// are none.
func own(tool string, environment map[string]string) (of string, settled bool, err error) {
	var b strings.Builder
	settled = true
	for _, name := range slices.Concat(insteadVariables, extraVariables) {
		file := environment[name]
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return "", false, cannotTrust(tool, name, err)
		}
		stamp, changed := stampOf(info)
		settled = settled && time.Since(changed) > tick
		fmt.Fprintf(&b, "%s %q%s\n", name, file, stamp)
	}
	return b.String(), settled, nil
}

// stampOf returns a stamp of a file that changes when the file does, and the time of the
// change.
func stampOf(fi fs.FileInfo) (stamp string, changed time.Time) {
	f, ok := inode.Of(fi)
	if changed = f.Changed; !ok { // any file is one that has just changed: a program can set the time that there is
		changed = time.Now()
	}
	return fmt.Sprintf(" %d %d %d %d %d", f.Dev, f.Ino, fi.Size(), fi.ModTime().UnixNano(), f.Changed.UnixNano()), changed
}

// tick is the longest in which file systems count time: a second change within one does
// not show.
const tick = 2 * time.Second

func cannotTrust(tool, variable string, err error) error {
	return fault.Errorf(fault.ToolBroken, "environment of tool %s, %s: read the authorities to trust: %w", tool, variable, err)
}

// systemFile returns the file with the system's authorities, or "".
func systemFile() string {
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		return own
	}
	for _, file := range systemTrust {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return file
		}
	}
	return ""
}

// certificates returns the certificates in a file, in PEM, without anything else in it.
func certificates(file string) ([]byte, error) {
	b, err := regular.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
	return out.Bytes(), nil
}
