package host_test

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// packs is a repository with a large pack behind git http-backend and TLS, and a daemon
// in a process of its own whose git gets the credential for it.
type packs struct {
	t      testing.TB
	git    string
	repos  string // of the server: the source, and where is pushed to
	url    string
	direct []string // the environment of git without the daemon
	daemon *hosttest.Process
	pid    int
}

const packToken = "Bearer sesame-0123456789"

// packsOf makes one with a pack of size bytes, which do not compress, in files of 16 MiB.
func packsOf(t testing.TB, size int) *packs {
	git, err := exec.LookPath("git")
	if err != nil || !hosttest.Judged() {
		t.Skip("there is no git here, or connections are not judged")
	}
	p := &packs{t: t, git: git, repos: t.TempDir()}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + p.repos, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=me", "GIT_CONFIG_PARAMETERS='core.fsync=none'"}}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != packToken {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		r.TransferEncoding = nil // git's backend reads to the end, and this handler takes no chunks
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	host, dir := "127.0.0.1:"+port, t.TempDir()
	ca, secret := dir+"/ca.pem", dir+"/secret"
	for file, text := range map[string][]byte{ca: certificateOf(&hosttest.Site{Server: server}), secret: []byte("sesame-0123456789\n")} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.direct = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "GIT_SSL_CAINFO=" + ca}
	p.daemon = hosttest.StartProcess(t, config.Config{})
	hosttest.WriteTool(t, p.daemon.Config.Tools, "git", M{
		"binary": git, "capabilities": M{"exec": []string{git, "/usr/lib/git-core"}, "network": []string{host}},
		"environment": M{"GIT_SSL_CAINFO": ca}, "mutating": true, "timeout": 600,
		"secrets": M{"token": M{"from": "file:" + secret, "header": "Authorization", "host": host, "content": "Bearer {secret}"}},
	}, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/wirer")})
	st, err := client.NewAdmin(p.daemon.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.pid = st.PID
	p.bare(p.source())
	p.fill(size)
	if err := os.Symlink(p.source(), p.repos+"/allow-source.git"); err != nil {
		t.Fatal(err)
	}
	return p
}

// source is the repository with the pack, which the daemon's git may read as well.
func (p *packs) source() string { return p.daemon.Root + "/source.git" }

// bare makes a repository that may be pushed to.
func (p *packs) bare(at string) {
	p.t.Helper()
	for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", at}, {"-C", at, "config", "http.receivepack", "true"}, {"-C", at, "config", "receive.unpackLimit", "1"}} {
		if out, err := exec.Command(p.git, args...).CombinedOutput(); err != nil {
			p.t.Fatalf("%v: %s", err, out)
		}
	}
}

// fill has the source get one commit with files of size bytes together.
func (p *packs) fill(size int) {
	p.t.Helper()
	cmd := exec.Command(p.git, "-C", p.source(), "-c", "core.compression=0", "-c", "pack.compression=0", "-c", "core.bigFileThreshold=1m", "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet")
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	w, random := bufio.NewWriterSize(in, 1<<20), rand.NewChaCha8([32]byte{})
	fmt.Fprint(w, "commit refs/heads/main\ncommitter A <a@example.com> 1700000000 +0000\ndata 5\nfirst\n")
	const one = 16 << 20
	for i := 0; size > 0; i++ {
		n := min(one, size)
		size -= n
		fmt.Fprintf(w, "M 100644 inline file%d\ndata %d\n", i, n)
		io.CopyN(w, random, int64(n))
		fmt.Fprintln(w)
	}
	w.Flush()
	in.Close()
	if err := cmd.Wait(); err != nil {
		p.t.Fatalf("git fast-import: %v: %s", err, said.String())
	}
}

// unsynced has git leave its files to the kernel: a disk is slower than what is measured.
var unsynced = []string{"-c", "core.fsync=none"}

// ways are the two ways that git can take.
func (p *packs) ways() map[string]func(args ...string) {
	return map[string]func(args ...string){
		"direct": func(args ...string) {
			p.t.Helper()
			cmd := exec.Command(p.git, slices.Concat(unsynced, []string{"-c", "http.extraHeader=Authorization: " + packToken}, args)...)
			cmd.Dir, cmd.Env = p.daemon.Root, p.direct
			if out, err := cmd.CombinedOutput(); err != nil {
				p.t.Fatalf("git %v: %v: %s", args, err, out)
			}
		},
		"through": func(args ...string) {
			p.t.Helper()
			if a := ask(p.t, p.daemon.Socket, M{"tool": "git", "cwd": p.daemon.Root, "args": slices.Concat(unsynced, args)}); a.ExitCode != 0 {
				p.t.Fatalf("git %v: %s", args, a.raw)
			}
		},
	}
}

// clone and push are what is measured; both leave nothing.
func (p *packs) clone(git func(args ...string)) time.Duration {
	to := p.daemon.Root + "/clone"
	defer os.RemoveAll(to)
	start := time.Now()
	git("clone", "-q", "--bare", p.url+"/allow-source.git", to)
	return time.Since(start)
}

func (p *packs) push(git func(args ...string)) time.Duration {
	to := p.repos + "/allow-target.git"
	p.bare(to)
	defer os.RemoveAll(to)
	start := time.Now()
	git("-C", p.source(), "push", "-q", p.url+"/allow-target.git", "main")
	return time.Since(start)
}

// memory is a field of the status of the daemon's process, in bytes.
func (p *packs) memory(field string) int {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	kib := 0
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		p.t.Fatal(err)
	}
	return kib << 10
}

// processors is how long the daemon has computed, and how long everything has that has a
// part in it, in seconds: the server, git at both ends, and the daemon, which may be this
// process.
func processors(t testing.TB, daemon int) (own, all float64) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			t.Fatal(err)
		}
		all += float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	of := map[int]bool{daemon: true} // and what it has started, in the order of their start
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	slices.SortFunc(files, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	for _, file := range files {
		text, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		_, rest, _ := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if len(f) < 15 {
			continue
		}
		parent, _ := strconv.Atoi(f[1])
		if of[pid] = of[pid] || of[parent]; !of[pid] || pid == os.Getpid() {
			continue
		}
		var ticks [4]int // user, system, and both of children that have ended
		for i := range ticks {
			ticks[i], _ = strconv.Atoi(f[11+i])
		}
		all += float64(ticks[0]+ticks[1]+ticks[2]+ticks[3]) / 100
		if pid == daemon {
			own = float64(ticks[0]+ticks[1]) / 100
		}
	}
	return own, all
}

// BenchmarkGitPack is git that clones, and pushes, a pack of 1 GiB (TOOLD_PACK_MIB)
// over https through a daemon that reads the requests and adds the credential, against
// git alone, in turn, medians. "cpu-ratio" is of the time that all processors took
// together, which is what the throughput goes by where these are busy, with this or with
// anything else. "peak-MB" is by how much the daemon's memory was above what it had
// before, at most.
func BenchmarkGitPack(b *testing.B) {
	size := 1 << 30
	if s := os.Getenv("TOOLD_PACK_MIB"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		size = n << 20
	}
	p := packsOf(b, size)
	ways := p.ways()
	b.Run("clone", func(b *testing.B) { p.measure(b, size, ways, p.clone) })
	b.Run("push", func(b *testing.B) { p.measure(b, size, ways, p.push) })
}

// A pack is streamed both ways: the daemon has no more memory for it than for buffers.
func TestPackIsStreamed(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector takes memory of its own")
	}
	const size = 64 << 20 // much more than what is garbage until the next collection
	p := packsOf(t, size)
	through := p.ways()["through"]
	for name, once := range map[string]func(func(args ...string)) time.Duration{"clone": p.clone, "push": p.push} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0); err != nil {
			t.Skip("the peak of a process cannot be set back: ", err)
		}
		before := p.memory("VmRSS")
		once(through)
		if grown := p.memory("VmHWM") - before; grown > size/2 {
			t.Errorf("%s: the daemon had %d MiB more for a pack of %d MiB", name, grown>>20, size>>20)
		}
	}
}

func (p *packs) measure(b *testing.B, size int, ways map[string]func(args ...string), once func(func(args ...string)) time.Duration) {
	took := map[string][]float64{}
	all := map[string][]float64{}
	var peak, computed []float64
	for b.Loop() {
		for _, how := range []string{"direct", "through"} {
			os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.pid), []byte("5"), 0)
			before := p.memory("VmRSS")
			began, allBegan := processors(b, p.pid)
			wall := once(ways[how]).Seconds()
			ended, allEnded := processors(b, p.pid)
			took[how], all[how] = append(took[how], wall), append(all[how], allEnded-allBegan)
			if how == "through" {
				peak = append(peak, float64(p.memory("VmHWM")-before))
				computed = append(computed, ended-began)
			}
			b.Logf("%s: %.2f s, %.2f s of processors", how, wall, allEnded-allBegan)
		}
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	direct, through := median(took["direct"]), median(took["through"])
	b.ReportMetric(float64(size)/direct/1e6, "direct-MB/s")
	b.ReportMetric(float64(size)/through/1e6, "through-MB/s")
	b.ReportMetric(direct/through, "ratio")
	b.ReportMetric(median(all["direct"])/median(all["through"]), "cpu-ratio")
	b.ReportMetric(median(computed), "daemon-cpu-s")
	b.ReportMetric(slices.Max(peak)/1e6, "peak-MB")
	b.ReportMetric(0, "ns/op") // of both sides together: says nothing
}
