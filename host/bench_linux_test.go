package host_test

import (
	"crypto/tls"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// BenchmarkLsRemoteHTTPS is git ls-remote over https through a daemon that reads the
// requests and adds the credential, against git alone, which has it, and against the
// same daemon's git with the connection passed through. "cpu" is what all processes took
// of the processors for one, which a loaded machine changes less.
func BenchmarkLsRemoteHTTPS(b *testing.B) {
	git, err := exec.LookPath("git")
	if err != nil || !hosttest.Judged() {
		b.Skip("there is no git here, or connections are not judged")
	}
	repos := b.TempDir()
	if out, err := exec.Command(git, "init", "-q", "--bare", repos+"/r.git").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1"}}
	server := hosttest.NewSite(b, "127.0.0.1:0", &tls.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sesame-0123456789" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		backend.ServeHTTP(w, r)
	})
	host, dir := "127.0.0.1:"+server.Port(), b.TempDir()
	ca, secret := dir+"/ca.pem", dir+"/secret"
	if err := os.WriteFile(ca, certificateOf(server), 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("sesame-0123456789\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	d := hosttest.Start(b, config.Config{})
	def := func(secrets M) M {
		return M{
			"binary": git, "capabilities": M{"exec": []string{git, "/usr/lib/git-core"}, "network": []string{host}},
			"environment": M{"GIT_SSL_CAINFO": ca}, "secrets": secrets,
		}
	}
	d.Tool(b, "read", def(M{"token": M{"from": "file:" + secret, "header": "Authorization", "host": host, "content": "Bearer {secret}"}}), nil)
	d.Tool(b, "passed", def(nil), nil)
	own := []string{"-c", "http.extraHeader=Authorization: Bearer sesame-0123456789", "ls-remote", server.URL + "/r.git"}
	read := func() *side {
		return &side{name: "read", run: over(b, d.Socket, M{"tool": "read", "cwd": d.Root, "args": []string{"ls-remote", server.URL + "/r.git"}})}
	}
	both := func(b *testing.B, ours, theirs *side) {
		compare(b, ours, theirs)
		for _, s := range []*side{ours, theirs} {
			_, before := processors(b, os.Getpid())
			for range len(s.took) {
				s.run(b)
			}
			_, after := processors(b, os.Getpid())
			b.ReportMetric((after-before)/float64(len(s.took))*1e6, s.name+"-cpu-µs")
		}
	}
	b.Run("alone", func(b *testing.B) {
		both(b, read(), &side{name: "alone", run: runs(git, d.Root, []string{"PATH=/usr/bin:/bin", "HOME=" + d.Root, "GIT_SSL_CAINFO=" + ca}, own...)})
	})
	b.Run("passed", func(b *testing.B) {
		both(b, read(), &side{name: "passed", run: over(b, d.Socket, M{"tool": "passed", "cwd": d.Root, "args": own})})
	})
}
