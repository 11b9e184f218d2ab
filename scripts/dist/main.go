// Command dist makes what is released: for each platform an archive of the
// programs, for Linux a Debian package too, bills of materials and SHA256SUMS.
// The same commit gives the same bytes, in whatever folder and whenever it is
// built: paths are trimmed, times are the commit's, and archives are sorted and
// belong to root.
//
//	go run ./scripts/dist [-platforms linux/amd64,...] [-programs toolctl,...] [-version V] OUT
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"debug/buildinfo"
)

func main() {
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "OS/ARCH of each archive, separated by commas")
	programs := flag.String("programs", "tool-client,toolctl,toold", "what is built, of cmd/")
	r := &release{extra: map[string][]byte{}}
	flag.StringVar(&r.version, "version", "", "the version (default what git describes the commit as)")
	flag.StringVar(&r.compression, "compression", "xz", "of the Debian package: xz, or none, for a test")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: dist [flags] OUT; OUT is a folder that is made anew")
		os.Exit(64)
	}
	r.out, r.programs = flag.Arg(0), strings.Split(*programs, ",")
	if err := r.make(strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// release is what all archives have in common.
type release struct {
	out, version string
	compression  string
	when         time.Time
	programs     []string
	// extra is what lies beside the programs: path in the archive to content.
	extra map[string][]byte
}

// make makes everything for the platforms in the folder r.out.
func (r *release) make(platforms []string) error {
	out := r.out
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		var err error
		if seconds, err = output("git", "log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("find the time of the commit: %w; set SOURCE_DATE_EPOCH", err)
		}
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	r.when = time.Unix(n, 0).UTC()
	os.Setenv("SOURCE_DATE_EPOCH", seconds) // of dpkg-deb and toolctl man
	os.Setenv("DPKG_DEB_THREADS_MAX", "1")  // xz writes something else with several
	if r.version == "" {
		if r.version, err = version(); err != nil {
			return err
		}
	}
	if !validVersion.MatchString(r.version) {
		return fmt.Errorf("%q cannot be a version; use digits, letters and .+~-", r.version)
	}
	// Made anew, so that what is in SHA256SUMS is what was built now.
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(out, "SHA256SUMS")); err != nil {
			return fmt.Errorf("%s has other files than dist makes; choose another folder", out)
		}
		if err := os.RemoveAll(out); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "toold-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := r.collect(work); err != nil {
		return err
	}
	for _, p := range platforms {
		goos, goarch, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q is not OS/ARCH", p)
		}
		if err := r.platform(work, goos, goarch); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return sums(out)
}

// version is the tag of the commit, or what git describes it as; without a tag,
// 0.0.0 with the commit.
func version() (string, error) {
	v, err := output("git", "describe", "--tags", "--match", "v[0-9]*")
	if err == nil {
		return strings.TrimPrefix(v, "v"), nil
	}
	v, err = output("git", "rev-parse", "--short=12", "HEAD")
	return "0.0.0+g" + v, err
}

// collect reads what is the same on every platform: documents, units, tools, and,
// of a toolctl of this platform, manual pages and completions.
func (r *release) collect(work string) error {
	// Only what is under version control, and the compiled modules beside it.
	files, err := output("git", "ls-files", "LICENSE", "README.md", "CHANGELOG.md", "docs", "deploy/systemd", "tools.d")
	if err != nil {
		return err
	}
	names := strings.Fields(files)
	modules, _ := filepath.Glob("tools.d/*/*.wasm")
	for _, name := range append(names, modules...) {
		if r.extra[filepath.ToSlash(name)], err = os.ReadFile(name); err != nil {
			return err
		}
	}
	if err := r.catalogue(); err != nil {
		return err
	}
	if !slices.Contains(r.programs, "toolctl") {
		return nil
	}
	// The others beside it: their pages are made of what they print.
	for _, p := range r.programs {
		if err := r.build(filepath.Join(work, "native", p), p, runtime.GOOS, runtime.GOARCH); err != nil {
			return err
		}
	}
	toolctl := filepath.Join(work, "native", "toolctl")
	man := filepath.Join(work, "man")
	if _, err := output(toolctl, "man", man); err != nil {
		return err
	}
	pages, _ := filepath.Glob(filepath.Join(man, "*.[18]"))
	for _, p := range pages {
		if r.extra["man/man"+filepath.Ext(p)[1:]+"/"+filepath.Base(p)], err = os.ReadFile(p); err != nil {
			return err
		}
	}
	for shell, name := range map[string]string{"bash": "toolctl", "zsh": "_toolctl", "fish": "toolctl.fish"} {
		text, err := output(toolctl, "completion", shell)
		if err != nil {
			return err
		}
		r.extra["completions/"+shell+"/"+name] = []byte(text + "\n")
	}
	return nil
}

// catalogue adds what toolctl tools add takes tools by: the sha256 of each file.
func (r *release) catalogue() error {
	list := map[string]map[string]string{}
	for name, data := range r.extra {
		rest, ok := strings.CutPrefix(name, "tools.d/")
		tool, file, inTool := strings.Cut(rest, "/")
		if !ok || !inTool {
			continue
		}
		if list[tool] == nil {
			list[tool] = map[string]string{}
		}
		list[tool][file] = fmt.Sprintf("%x", sha256.Sum256(data))
	}
	text, err := json.MarshalIndent(map[string]any{"tools": list}, "", "  ")
	r.extra["tools.d/catalogue.json"] = append(text, '\n')
	return err
}

// build compiles one program to path. The version is told to the linker, and not taken
// from version control, which the go command finds in some checkouts only.
func (r *release) build(path, program, goos, goarch string) error {
	flags := "-ldflags=-s -w -buildid= -X github.com/toold/toold/host.released=" + r.version + " -X main.released=" + r.version
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", flags, "-o", path, "./cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch, "GOAMD64=v1", "GOFLAGS=-p=2")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", program, err, out)
	}
	return nil
}

// platform makes the files of one platform.
func (r *release) platform(work, goos, goarch string) error {
	name := fmt.Sprintf("toold-%s-%s-%s", r.version, goos, goarch)
	content := map[string][]byte{}
	infos := map[string]*debug.BuildInfo{}
	for _, p := range r.programs {
		path := filepath.Join(work, goos+"-"+goarch, p)
		if err := r.build(path, p, goos, goarch); err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if infos[p], err = buildinfo.ReadFile(path); err != nil {
			return err
		}
		content["bin/"+p] = data
	}
	maps.Copy(content, r.extra)
	bill, err := r.bill(name, infos, content)
	if err != nil {
		return err
	}
	content["sbom.cdx.json"] = bill
	if err := os.WriteFile(filepath.Join(r.out, name+".cdx.json"), bill, 0o644); err != nil {
		return err
	}
	archive, err := r.archive(name, content)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.out, name+".tar.gz"), archive, 0o644); err != nil {
		return err
	}
	if goos != "linux" || !slices.Contains(r.programs, "toold") {
		return nil
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		fmt.Fprintln(os.Stderr, "dist: no Debian package: dpkg-deb is not installed")
		return nil
	}
	return r.debian(work, goarch, content)
}

// archive is a tar of content beneath a folder called name.
func (r *release) archive(name string, content map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zip)
	for _, path := range slices.Sorted(maps.Keys(content)) {
		h := &tar.Header{
			Name: name + "/" + path, Mode: int64(mode(path)), Size: int64(len(content[path])),
			ModTime: r.when, Uname: "root", Gname: "root", Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content[path]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), zip.Close()
}

func mode(path string) fs.FileMode {
	if strings.Contains(path, "bin/") || strings.HasPrefix(path, "DEBIAN/p") {
		return 0o755
	}
	return 0o644
}

// bill is a CycloneDX bill of materials: the programs and modules of content by their
// sha256, the libraries that the linker put into the programs, and the compiler.
func (r *release) bill(name string, infos map[string]*debug.BuildInfo, content map[string][]byte) ([]byte, error) {
	type hash struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	}
	type property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	type component struct {
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl,omitempty"`
		Ref        string     `json:"bom-ref"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	found := map[string]component{}
	for _, program := range slices.Sorted(maps.Keys(infos)) {
		info := infos[program]
		add := func(path, version, sum string) {
			purl := "pkg:golang/" + path + "@" + version
			c, ok := found[purl]
			if !ok {
				c = component{Type: "library", Name: path, Version: version, PURL: purl, Ref: purl}
			}
			c.Properties = append(c.Properties, property{"toold:program", program})
			if sum != "" && !ok {
				c.Properties = append([]property{{"toold:go.sum", sum}}, c.Properties...)
			}
			found[purl] = c
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"), "")
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			add(d.Path, d.Version, d.Sum)
		}
	}
	bom := struct {
		Format   string `json:"bomFormat"`
		Spec     string `json:"specVersion"`
		Version  int    `json:"version"`
		Metadata struct {
			Timestamp string    `json:"timestamp"`
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}{Format: "CycloneDX", Spec: "1.5", Version: 1, Components: []component{}}
	bom.Metadata.Timestamp = r.when.Format(time.RFC3339)
	bom.Metadata.Component = component{Type: "application", Name: "toold", Version: r.version, Ref: name}
	for _, path := range slices.Sorted(maps.Keys(content)) {
		if strings.HasPrefix(path, "bin/") || strings.HasSuffix(path, ".wasm") {
			bom.Components = append(bom.Components, component{
				Type: "file", Name: path, Version: r.version, Ref: "file:" + path,
				Hashes: []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(content[path]))}},
			})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		bom.Components = append(bom.Components, found[key])
	}
	text, err := json.MarshalIndent(bom, "", "  ")
	return append(text, '\n'), err
}

var validVersion = regexp.MustCompile(`^[0-9][A-Za-z0-9.+~-]*$`)

var notInDebianVersion = regexp.MustCompile(`[^A-Za-z0-9.+~]`)

// debian makes a package of content with dpkg-deb. It starts nothing when it is
// installed: there are no tools yet.
func (r *release) debian(work, goarch string, content map[string][]byte) error {
	tree := debianTree(content)
	size := 0
	for _, data := range tree {
		size += len(data)
	}
	version := notInDebianVersion.ReplaceAllString(r.version, "~")
	tree["DEBIAN/control"] = fmt.Appendf(nil, debianControl, version, goarch, size/1024)
	root := filepath.Join(work, "deb-"+goarch)
	if err := r.lay(root, tree); err != nil {
		return err
	}
	_, err := output("dpkg-deb", "--root-owner-group", "-Z"+r.compression, "--build", root,
		filepath.Join(r.out, fmt.Sprintf("toold_%s_%s.deb", version, goarch)))
	return err
}

const debianControl = `Package: toold
Version: %s
Architecture: %s
Maintainer: toold <toold@localhost>
Section: admin
Priority: optional
Installed-Size: %d
Depends: passwd
Recommends: git, systemd
Description: tools for containers, behind WebAssembly policies
 A wrapper in a container sends a call over a Unix socket; toold asks a
 WebAssembly policy, runs the tool, and answers.
`

// debianTree returns the files of the package but for its control file, by their paths:
// content, where Debian has it, and the package's own.
func debianTree(content map[string][]byte) map[string][]byte {
	tree := map[string][]byte{
		"etc/toold/toold.json": []byte("{\n  \"roots\": [\"/workspace\"]\n}\n"),
		"DEBIAN/conffiles":     []byte("/etc/toold/toold.json\n"),
		"DEBIAN/postinst":      []byte(postinst),
		"DEBIAN/prerm":         []byte(prerm),
		"DEBIAN/postrm":        []byte(postrm),
	}
	for path, data := range content {
		switch dir, name, _ := strings.Cut(path, "/"); {
		case dir == "bin":
			tree["usr/bin/"+name] = data
		case path == "deploy/systemd/toold.service":
			tree["lib/systemd/system/toold.service"] = data
		case path == "deploy/systemd/toold.socket", path == "deploy/systemd/toold-admin.socket":
			tree["lib/systemd/system/"+filepath.Base(path)] = data
		case path == "deploy/systemd/toold.sysusers.conf":
			tree["usr/lib/sysusers.d/toold.conf"] = data
		case path == "deploy/systemd/toold.tmpfiles.conf":
			tree["usr/lib/tmpfiles.d/toold.conf"] = data
		case dir == "man":
			tree["usr/share/man/"+name] = data
		case strings.HasPrefix(path, "completions/bash/"):
			tree["usr/share/bash-completion/completions/toolctl"] = data
		case strings.HasPrefix(path, "completions/zsh/"):
			tree["usr/share/zsh/vendor-completions/_toolctl"] = data
		case strings.HasPrefix(path, "completions/fish/"):
			tree["usr/share/fish/vendor_completions.d/toolctl.fish"] = data
		case dir == "tools.d": // to be copied to /etc/toold/tools.d
			tree["usr/share/toold/"+path] = data
		case path == "LICENSE":
			tree["usr/share/doc/toold/copyright"] = data
		default:
			tree["usr/share/doc/toold/"+path] = data
		}
	}
	return tree
}

// lay writes tree below root, with the modes and the time of a release.
func (r *release) lay(root string, tree map[string][]byte) error {
	for path, data := range tree {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, mode(path)); err != nil {
			return err
		}
		// The umask of who builds does not count.
		if err := os.Chmod(file, mode(path)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/toold/tools.d"), 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		if err == nil {
			err = os.Chtimes(path, r.when, r.when)
		}
		return err
	})
}

const postinst = `#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
# The user and the folders do not need systemd to run, or to be there.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers toold.conf
elif ! getent passwd toold >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/toold --no-create-home --shell /usr/sbin/nologin --comment 'toold daemon' toold
fi
if command -v systemd-tmpfiles >/dev/null; then
	systemd-tmpfiles --create toold.conf
else
	install -d -o toold -g toold -m 0755 /run/toold /run/toold/sockets
	install -d -o toold -g toold -m 0700 /var/lib/toold /var/lib/toold/0
fi
systemd=''
if [ -d /run/systemd/system ]; then
	systemd=yes
	systemctl daemon-reload
fi
if [ -z "$2" ]; then
	# A first installation starts nothing: there are no tools yet.
	echo 'toold: toolctl tools add --tools /etc/toold/tools.d NAME adds tools; edit /etc/toold/toold.json, then start it:'
	if [ "$systemd" ]; then
		echo 'toold: systemctl enable --now toold.socket toold-admin.socket toold.service'
	else
		echo 'toold: no systemd runs here. Start /usr/bin/toold as the user toold, with the variables of /lib/systemd/system/toold.service'
	fi
	exit 0
fi
# The running daemon gives its place to the new program, without a failed call. Only
# where one runs: a socket of systemd would start one.
admin=/var/lib/toold/0/admin.sock
[ -S "$admin" ] || exit 0
[ -z "$systemd" ] || systemctl -q is-active toold.service || exit 0
runuser -u toold -- toolctl --admin "$admin" upgrade --within 5m ||
	echo 'toold: the earlier program goes on, if one ran: toolctl upgrade, as the user toold, tries again; systemctl restart toold ends its calls'
`

const prerm = `#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	# Sockets first: one of them would start the daemon again.
	systemctl disable --now toold.socket toold-admin.socket toold.service
fi
`

const postrm = `#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
# State, tools and secrets go with the configuration; the user stays, since files may be its own.
[ "$1" != purge ] || rm -rf /var/lib/toold /run/toold /etc/toold
`

// sums writes SHA256SUMS of every file in dir.
func sums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), b.Bytes(), 0o644)
}

// output runs a program and returns what it prints, without the last line's end.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(name), err, errs.String())
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
