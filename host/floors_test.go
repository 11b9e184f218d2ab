package host_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/toold/toold"

// floor is what a package may stand on.
type floor struct {
	// pkg is a folder of the module; with a trailing /... all beneath it.
	pkg string
	// n is its floor: it may import packages of lower floors only.
	n int
	// only, where it is not nil, is all of the module and all third-party
	// code that it may import.
	only []string
	// why is what the failure says.
	why string
}

// Floors of guests. They count by themselves: a guest never stands on the
// host, whatever its number.
const (
	guestLib = -2
	guest    = -1
)

var std = []string{}

// floors is the whole order of imports. A new package gets a line, with the
// reason for its place. The longest match counts.
var floors = []floor{
	{"pdk/abi", guestLib, std, "guests link it, and every byte of a guest is loaded for each tool: the standard library only"},
	{"pdk", guest, []string{"pdk/abi"}, "guests link it: pdk/abi and the standard library only"},
	{"pdk/argv", guestLib, std, "policies link it, and it can be used without the rest: the standard library only"},
	{"pdk/c", guestLib, std, "it only hands out a header"},
	{"pdk/rust", guestLib, std, "it only hands out a crate"},
	{"pdk/assemblyscript", guestLib, std, "it only hands out sources"},
	{"host/plugin", 4, nil, "the workbench of authors: it stands on the engine and tool.json, and runs no daemon"},
	{"pdk/toolchain", 0, std, "it runs compilers, and tests and programs build guests with it: the standard library only"},
	{"plugins/...", guest, []string{"pdk", "pdk/abi", "pdk/argv", "plugins/..."}, "a plugin is a guest: it is built from pdk alone and knows nothing of the host"},
	{"sdk-examples/...", guest, []string{"pdk", "pdk/abi", "pdk/argv"}, "an example shows what a stranger can do with pdk alone"},

	{"host/fault", 0, std, "every layer ends calls with its codes, the wrapper too: the standard library only"},
	{"host/strictjson", 0, std, "every layer reads foreign JSON with it, the wrapper too: the standard library only"},
	{"host/places", 0, std, "the wrapper finds its daemon with it: the standard library only"},
	{"host/wire", 1, []string{"host/fault", "host/strictjson", "host/wire/callbacks"}, "tool-client links it and must start in a millisecond: the standard library, the codes and the JSON reader only"},
	{"host/wire/callbacks", 0, []string{"host/fault"}, "tool-client links it, and it knows no frames beside its own: the standard library and the codes only"},
	{"host/arguments", 1, []string{"host/fault", "host/strictjson"}, "it makes a payload of text by a schema, and knows nothing of calls: the standard library, the codes and the JSON reader only"},
	{"host/redisdb", 0, []string{"github.com/redis/go-redis/..."}, "it runs scripts on a Redis and says what that keeps: it does not know what is kept"},
	{"host/idempotency", 1, nil, "a record's state machine can be used alone: it knows nothing of tools, sockets or Wasm"},
	{"host/breaker", 0, nil, "a breaker can be used alone: it knows nothing of tools, sockets or Wasm"},
	{"host/retry", 0, nil, "backoff can be used alone: it knows nothing of tools, sockets or Wasm"},
	{"host/gitwire", 0, std, "it reads what git says to servers, over whatever it says it: the standard library only"},
	{"scripts/...", 0, std, "what builds and tests the project must not need the project"},

	{"host/approval", 1, []string{"host/regular", "host/strictjson"}, "it keeps what was asked and approved, and knows no calls, callers or policies: the standard library and the JSON reader only"},
	{"host/audit", 1, []string{"host/regular", "host/strictjson", "golang.org/x/sys/unix"}, "it keeps and checks records, and can be read without a daemon: the JSON reader and system calls only"},
	{"host/config", 1, nil, "programs that only dial read it too: it links nothing of the host but the JSON reader"},
	{"host/hostrule", 0, std, "it compares hosts, and reaches none: the standard library only"},
	{"host/regular", 0, std, "every layer opens its files with it: the standard library only"},
	{"host/beneath", 0, []string{"host/fault", "golang.org/x/sys/unix"}, "it opens folders and says where they are: the codes and system calls only"},
	{"host/inode", 0, std, "it says which file one is, and reads none: the standard library only"},
	{"host/trust", 0, []string{"host/regular", "host/fault", "host/hostrule", "host/inode"}, "it makes authorities and the files that name them, and reads no request: the standard library, the codes, the comparison of hosts and of files only"},
	{"host/sshkey", 0, []string{"host/regular", "host/hostrule", "golang.org/x/crypto/ssh", "golang.org/x/crypto/ssh/agent", "golang.org/x/crypto/ssh/knownhosts"}, "it logs in and signs with keys, and connects to no host: the library of ssh and the comparison of hosts only"},
	{"host/sshshim", 0, []string{"host/sshkey", "host/strictjson"}, "it is a program of a run and what the daemon answers it, and judges nothing: the standard library, the JSON reader and the name of git's signatures only"},
	{"host/lfsshim", 0, std, "it executes the one program that lies beside it: the standard library only"},
	{"host/names", 0, []string{"host/hostrule", "golang.org/x/net/dns/dnsmessage"}, "it answers what resolvers ask, and connects nobody: the standard library, the form of messages and the comparison of hosts only"},
	{"host/webserver", 0, std, "it bounds connections, and knows no request that it serves: the standard library only"},
	{"host/hello", 0, std, "it reads how TLS begins: the standard library only"},
	{"host/sigv4", 0, []string{"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/aws/signer/v4"}, "it signs requests and makes none: the library of AWS only"},
	{"host/form", 0, std, "it reads forms, and decides about no request: the standard library only"},
	{"host/egress", 0, []string{"host/form", "host/gitwire", "host/hello", "host/hostrule", "host/names", "host/sigv4", "host/strictjson", "host/sshkey", "host/sshshim", "host/trust", "pdk/abi", "golang.org/x/crypto/ssh", "golang.org/x/sys/unix"}, "it connects what processes want connected, by rules of its own: a supervisor links it, and it knows neither tools nor processes"},
	{"host/seccomp", 0, []string{"golang.org/x/sys/unix"}, "it installs filters and hands on calls: it knows no rule of who may do what"},
	{"host/procfs", 0, []string{"golang.org/x/sys/unix"}, "it reads what /proc tells of processes: the standard library and system calls only"},
	{"host/confine", 1, nil, "it confines a thread and answers its system calls, and starts nothing: which process that is, is above"},
	{"host/adminapi", 2, []string{"host/wire"}, "the daemon and its clients speak it: the standard library and the protocol only"},
	{"host/repoconfig", 3, nil, "it reads what git would, for the pipeline; git is a tool like any other to the rest"},
	{"host/discovery", 3, nil, "it keeps what modules list, and asks none itself"},

	{"host/guest/wasm", 0, std, "it reads foreign bytes and writes them anew: the standard library only"},
	{"host/guest/component", 0, std, "it reads foreign bytes: the standard library only"},
	{"host/guest/canon", 1, []string{"host/guest/component"}, "it moves values to and from any memory, and knows no engine"},
	{"host/guest/folder", 0, []string{"github.com/tetratelabs/wazero/sys", "golang.org/x/sys/unix"}, "it opens files for guests, and knows no guest: of wazero the fields of a file only"},
	{"host/guest/wasip2", 1, []string{"host/guest/component", "host/guest/folder"}, "it answers what components ask of WASI, over what it is given, and knows no engine"},
	{"host/client", 3, nil, "a client knows the wire and the places, never what is behind them"},
	{"host/guest", 2, nil, "the engine knows modules and bytes, never tools"},
	{"host/process", 2, nil, "processes know argv and folders, never tools"},
	{"host/observe", 2, nil, "what observes must not lean on what it observes"},

	{"host/events", 1, []string{"host/fault"}, "it tells watchers what happens, and asks nobody: the standard library and the codes only"},

	{"host/callback", 3, []string{"host/beneath", "host/fault", "host/strictjson", "host/wire", "host/wire/callbacks", "golang.org/x/sys/unix"}, "it relays between a run and its caller's connection, and knows nothing of tools"},
	{"host/server", 3, nil, "connections know frames, never tools"},
	{"host/identity", 3, nil, "who calls is known before what they call"},
	{"host/journal", 1, []string{"host/regular", "host/fault"}, "it keeps records in files, and knows nothing of what runs: the standard library and the codes only"},
	{"host/job", 2, []string{"host/regular", "host/events", "host/fault", "host/journal", "host/wire"}, "it keeps background calls and their outputs, and runs nothing: sessions and the pipeline do"},
	{"host/selector", 1, []string{"host/fault", "cel.dev/cel-go/...", "google.golang.org/protobuf/..."}, "it evaluates what callers write over the values it is given, and can read nothing else: CEL and the codes only"},
	{"host/session", 3, nil, "sessions hold ids and journals; the pipeline drives them"},
	{"host/tools", 3, nil, "what a tool is: the words of tool.json for the engine and processes, and beneath every stage"},

	{"host/mask", 0, std, "it hides secrets in any text, and knows nothing of who has which: the standard library only"},
	{"host/display", 0, std, "it reads what any program writes to a terminal: the standard library only"},
	{"host/fetch", 3, []string{"host/guest", "host/hostrule"}, "it makes the requests of guests by what they are granted, and knows no tool"},

	{"host/disk", 4, nil, "it reads the files of tools, and knows nothing of loading or serving them"},
	{"host/catalog", 5, nil, "it makes tools of files and says which serves; who calls them is above"},
	{"host/call", 4, nil, "the values of a call's stages: every stage stands on them, and they on no stage"},
	{"host/execute", 5, nil, "it runs what was decided, and knows nothing of keys, breakers or retries"},
	{"host/reliability", 5, nil, "it judges what came of an attempt, and runs none itself"},
	{"host/record", 5, nil, "it says what of a call is kept in the audit log, and writes none"},
	{"host/finder", 6, nil, "it finds tools and has modules asked for theirs; no call runs by it"},
	{"host/pipeline", 7, nil, "the order of the stages: above all of them, and below every front end"},
	{"host/mcp", 8, []string{"host/call", "host/fault", "host/mcp/replay", "host/mcp/translate", "host/strictjson", "host/webserver", "host/wire", "github.com/modelcontextprotocol/go-sdk/..."}, "a second front end of the same pipeline: it makes calls, and knows nothing of what is behind them; the daemon starts it"},
	{"host/mcp/replay", 0, []string{"github.com/modelcontextprotocol/go-sdk/..."}, "it keeps what was sent, and knows no calls: the SDK's types only"},
	{"host/mcp/translate", 2, []string{"host/fault", "host/strictjson", "host/wire", "pdk/abi", "github.com/modelcontextprotocol/go-sdk/..."}, "it has values of the daemon as MCP has them, and makes no call: the protocol, the codes and the SDK's types only"},
	{"host/dashboard", 3, []string{"host/events", "host/fault", "host/webserver"}, "a page that shows what the operator's handler says: the standard library, the events and the codes only"},
	{"host/admin", 8, nil, "a front end for operators: it shows what the parts of a daemon say"},

	{"host", 9, nil, "the host wires everything by hand; only programs and whole-daemon tests stand above it"},

	{"host/hosttest", 10, nil, "a whole daemon, for tests"},
	{"host/compat", 11, nil, "it runs what others compiled through a whole daemon, beside other engines"},
	{"pdk/pdktest", 10, nil, "a suite that runs guests in the real engine"},
	{"pdk/pdktest/vectors", 2, []string{"host/fault", "host/strictjson", "pdk/abi"}, "the cases of the suite, and the host that answers them, know no engine, so that the engine's own tests use them too"},
	{"pdk/pdktest/guest", guest, []string{"pdk", "pdk/abi"}, "the guest that the suite is for: a guest like any other"},
	{"sdk-examples/embed", 11, nil, "an example of a program that has the host in it"},
	{"cmd/...", 11, nil, "programs stand on everything"},
	{"cmd/tool-client", 11, []string{"host/wire", "host/wire/callbacks", "host/fault", "host/strictjson", "host/places", "golang.org/x/sys/unix"}, "a wrapper starts in a millisecond for each git in a loop: the standard library, the protocol and the modes of terminals only"},
}

// bans are imports that belong to few.
var bans = []struct {
	prefix string
	users  []string
	why    string
}{
	{"github.com/tetratelabs/wazero", []string{"host/guest", "host/guest/folder"}, "host/guest alone knows which Wasm engine runs; its folders read the times of files with wazero/sys, on every system"},
	{"github.com/extism/", []string{"host/guest", "host/compat"}, "host/guest alone loads Extism manifests; it and whole daemons are compared with go-sdk"},
	{"github.com/landlock-lsm/", []string{"host/confine"}, "host/confine alone confines"},
	{"github.com/redis/", []string{"host/redisdb"}, "host/redisdb alone speaks to Redis"},
	{"github.com/spf13/", []string{"cmd/toold", "cmd/toolctl"}, "command lines belong to programs"},
	{"go.opentelemetry.io/", []string{"host/observe"}, "the rest of the host observes through host/observe"},
	{"github.com/modelcontextprotocol/", []string{"host/mcp", "host/mcp/translate", "host/mcp/replay"}, "host/mcp alone speaks MCP"},
	{"k8s.io/", nil, "only the test of deploy's manifests knows Kubernetes' types"},
	{"github.com/aws/", []string{"host/sigv4"}, "host/sigv4 alone signs requests"},
	{"charm.land/", []string{"cmd/toolctl"}, "a terminal view belongs to a program"},
	{"cel.dev/", []string{"host/selector"}, "selectors are evaluated with their bounds in host/selector alone"},
	{"github.com/prometheus/", []string{"host/observe"}, "the rest of the host observes through host/observe"},
}

// reach says what a program or package may come to link, through any number
// of imports.
var reach = []struct {
	from  string
	never []string // and nothing beneath
	why   string
}{
	{"cmd/tool-client", []string{"host/...", "pdk/..."}, "a wrapper links nothing of the host but the protocol"},
	{"plugins/...", []string{"host/...", "cmd/..."}, "nothing of the host links into a guest"},
	{"pdk", []string{"host/...", "cmd/..."}, "nothing of the host links into a guest"},
	{"sdk-examples/go/...", []string{"host/...", "cmd/..."}, "nothing of the host links into a guest"},
	{"cmd/toolctl", []string{"host", "host/pipeline", "host/execute", "host/server", "host/catalog"}, "the operator's program runs no daemon: toolctl links the workbench of authors, and nothing that serves calls"},
	{"host/client", []string{"host", "host/guest", "host/process", "host/tools", "host/disk", "host/catalog", "host/server"}, "a program that only dials must not link the engine"},
}

// TestFloors reads the imports of every package itself, without build tags
// and without a cache, and refuses one that goes upwards.
func TestFloors(t *testing.T) {
	imports, err := readImports(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range check(imports) {
		t.Error(fault)
	}
	if len(imports) < 3 {
		t.Fatalf("only %d packages found: %v", len(imports), imports)
	}
}

// TestFloorsSeeFaults shows that each kind of fault is found.
func TestFloorsSeeFaults(t *testing.T) {
	in := module + "/"
	for _, tt := range []struct {
		name    string
		imports map[string][]string
		want    string
	}{
		{"a stranger", map[string][]string{"host/new": nil}, "host/new has no floor"},
		{"upwards", map[string][]string{"host/guest": {in + "host/tools"}}, "host/guest (floor 2) imports host/tools (floor 3)"},
		{"sideways", map[string][]string{"host/tools": {in + "host/server"}}, "host/tools (floor 3) imports host/server (floor 3)"},
		{"a library in wire", map[string][]string{"host/wire": {"golang.org/x/sys/unix"}}, "host/wire imports golang.org/x/sys/unix"},
		{"the host in a guest", map[string][]string{"plugins/git": {in + "host/wire"}}, "plugins/git imports host/wire"},
		{"wazero outside guest", map[string][]string{"host/tools": {"github.com/tetratelabs/wazero/api"}}, "host/tools imports github.com/tetratelabs/wazero/api"},
		{"a wrapper that grows", map[string][]string{"cmd/tool-client": {in + "host/client"}}, "cmd/tool-client imports host/client"},
		{"a wrapper that grows unseen", map[string][]string{"cmd/tool-client": {in + "host/wire"}, "host/wire": {in + "pdk/abi"}}, "cmd/tool-client comes to link pdk/abi"},
		{"a client that links the engine", map[string][]string{"host/client": {in + "host/guest"}}, "host/client comes to link host/guest"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faults := check(tt.imports)
			if !slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(f, tt.want) }) {
				t.Errorf("got %q, want one that begins with %q", faults, tt.want)
			}
		})
	}
}

// readImports maps each folder with Go files to what they import. Tests may
// stand on anything and are left out.
func readImports(root fs.FS) (map[string][]string, error) {
	out := map[string][]string{}
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "bin") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(p, "go.mod")); err == nil && p != "." {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir := path.Dir(p)
		for _, spec := range f.Imports {
			ip, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !slices.Contains(out[dir], ip) {
				out[dir] = append(out[dir], ip)
			}
		}
		if out[dir] == nil {
			out[dir] = []string{}
		}
		return nil
	})
	return out, err
}

// check returns a sentence for each fault, in no order that matters.
func check(imports map[string][]string) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	for dir, list := range imports {
		f, ok := floorOf(dir)
		if !ok {
			fault("%s has no floor: add it to the table in host/floors_test.go, with the reason for its place", dir)
			continue
		}
		for _, ip := range list {
			own, isOwn := strings.CutPrefix(ip, module+"/")
			if !isOwn && !thirdParty(ip) {
				continue
			}
			name := ip
			if isOwn {
				name = own
			}
			if f.only != nil {
				if !slices.ContainsFunc(f.only, func(o string) bool { return matches(o, name) }) {
					fault("%s imports %s: %s", dir, name, f.why)
				}
			} else if g, ok := floorOf(own); isOwn && ok && g.n >= f.n && !beneath(f, g) {
				fault("%s (floor %d) imports %s (floor %d): %s", dir, f.n, own, g.n, f.why)
			}
			for _, b := range bans {
				if strings.HasPrefix(ip, b.prefix) && !slices.Contains(b.users, dir) {
					fault("%s imports %s: %s", dir, ip, b.why)
				}
			}
		}
	}
	for _, r := range reach {
		for dir := range imports {
			if !matches(r.from, dir) {
				continue
			}
			f, _ := floorOf(dir)
			for _, to := range closure(imports, dir) {
				if slices.ContainsFunc(f.only, func(o string) bool { return matches(o, to) }) {
					continue
				}
				if slices.ContainsFunc(r.never, func(n string) bool { return matches(n, to) }) {
					fault("%s comes to link %s: %s", dir, to, r.why)
				}
			}
		}
	}
	return faults
}

// beneath lets the packages of one /... line share among themselves.
func beneath(f, g floor) bool { return f.pkg == g.pkg && strings.HasSuffix(f.pkg, "/...") }

// closure is every package of the module that dir links, itself aside.
func closure(imports map[string][]string, dir string) []string {
	seen := map[string]bool{dir: true}
	todo := []string{dir}
	var out []string
	for len(todo) > 0 {
		list := imports[todo[0]]
		todo = todo[1:]
		for _, ip := range list {
			own, ok := strings.CutPrefix(ip, module+"/")
			if ok && !seen[own] {
				seen[own] = true
				todo = append(todo, own)
				out = append(out, own)
			}
		}
	}
	return out
}

func floorOf(dir string) (floor, bool) {
	var best floor
	for _, f := range floors {
		if matches(f.pkg, dir) && len(f.pkg) > len(best.pkg) {
			best = f
		}
	}
	return best, best.pkg != ""
}

func matches(pattern, dir string) bool {
	if p, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == p || strings.HasPrefix(dir, p+"/")
	}
	return dir == pattern
}

// thirdParty reports whether ip is outside the standard library, whose paths
// have no dot in their first element.
func thirdParty(ip string) bool {
	first, _, _ := strings.Cut(ip, "/")
	return strings.Contains(first, ".")
}

// opens are the ways to open a file that wait for the other end of a pipe.
var opens = regexp.MustCompile(`\bos\.(Open|OpenFile|ReadFile)\(([^,)]*)`)

// TestFilesAreOpenedByRegular: the daemon opens files by package regular, so that a pipe or
// a device in the place of one cannot stop it.
func TestFilesAreOpenedByRegular(t *testing.T) {
	others := map[string]string{
		"regular":               "it is that package",
		"procfs":                "of /proc alone",
		"process":               "of /proc and /dev alone",
		"sshshim":               "a program of a run, which a caller can end",
		"confine/view_linux.go": "of the system, and of mounts that it made",
		"execute/shims.go":      "of the daemon's own program",
		"plugin":                "the workbench of authors, which runs no daemon",
		"compat":                "for tests", "hosttest": "for tests",
	}
	err := filepath.WalkDir(".", func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && e.Name() == "testdata" {
			return fs.SkipDir
		}
		pkg, _, _ := strings.Cut(file, "/")
		if e.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || others[pkg] != "" || others[file] != "" {
			return nil
		}
		text, err := os.ReadFile(file)
		for _, m := range opens.FindAllStringSubmatch(string(text), -1) {
			switch arg := m[2]; {
			case strings.HasPrefix(arg, `"/proc/`), strings.HasPrefix(arg, `filepath.Join("/proc"`):
			case arg == "dir", arg == "folder", arg == "filepath.Dir(path": // which was made with MkdirAll, or is read
			default:
				t.Errorf("%s has %s): open it by package regular", file, m[0])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
