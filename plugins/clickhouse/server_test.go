package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// clickHouse is a real server of Debian's package, with users that the test
// writes.
type clickHouse struct {
	t    testing.TB
	dir  string
	port string
	cmd  *exec.Cmd
	done chan struct{}
}

// user is one of users.xml.
type user struct {
	name, password, profile string
	databases               []string
}

var firstUsers = []user{
	{"admin", "admin-canary-3c1f", "default", nil},
	{"alice", "alice-canary-9d0b", "default", []string{"sales"}},
	{"bob", "bob-canary-77aa", "reader", []string{"ops"}},
}

func startClickHouse(t testing.TB) *clickHouse {
	t.Helper()
	if _, err := exec.LookPath("clickhouse-server"); err != nil {
		t.Skip("no clickhouse-server; make test fetches it")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	c := &clickHouse{t: t, dir: t.TempDir(), port: port}
	config := strings.NewReplacer("DIR", c.dir, "PORT", port).Replace(`<yandex>
<logger><level>information</level><console>1</console></logger>
<http_port>PORT</http_port><listen_host>127.0.0.1</listen_host>
<path>DIR/data/</path><tmp_path>DIR/tmp/</tmp_path><user_files_path>DIR/files/</user_files_path><format_schema_path>DIR/schemas/</format_schema_path>
<users_config>users.xml</users_config><default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>5242880</mark_cache_size>
<query_log><database>system</database><table>query_log</table><flush_interval_milliseconds>500</flush_interval_milliseconds></query_log>
</yandex>`)
	if err := os.WriteFile(filepath.Join(c.dir, "config.xml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.users(firstUsers)
	c.start()
	t.Cleanup(c.stop)
	for _, s := range []string{
		"CREATE DATABASE sales", "CREATE DATABASE ops",
		"CREATE TABLE sales.orders (id UInt64, region String, amount Float64, day Date, at DateTime, u UUID, tags Array(String), n Nullable(Int32), e Enum8('a' = 1, 'it\\'s' = 2), f FixedString(3), small Int8) ENGINE = MergeTree ORDER BY id",
		"CREATE VIEW sales.byRegion AS SELECT region, sum(amount) AS total FROM sales.orders GROUP BY region ORDER BY region",
		"CREATE TABLE ops.hosts (name String) ENGINE = Memory", "INSERT INTO ops.hosts VALUES ('web-1')",
		"CREATE VIEW ops.up AS SELECT name FROM ops.hosts",
	} {
		c.admin(s)
	}
	return c
}

// users writes users.xml anew.
func (c *clickHouse) users(list []user) {
	var b strings.Builder
	b.WriteString(`<yandex><profiles><default><log_queries>1</log_queries><max_threads>1</max_threads></default><reader><readonly>1</readonly><log_queries>1</log_queries></reader></profiles>
<quotas><default><interval><duration>3600</duration><queries>0</queries><errors>0</errors><result_rows>0</result_rows><read_rows>0</read_rows><execution_time>0</execution_time></interval></default></quotas><users>`)
	for _, u := range list {
		fmt.Fprintf(&b, "<%[1]s><password>%s</password><networks><ip>127.0.0.1</ip></networks><profile>%s</profile><quota>default</quota>", u.name, u.password, u.profile)
		if u.databases != nil {
			b.WriteString("<allow_databases><database>" + strings.Join(u.databases, "</database><database>") + "</database></allow_databases>")
		}
		fmt.Fprintf(&b, "</%s>", u.name)
	}
	b.WriteString("</users></yandex>")
	if err := os.WriteFile(filepath.Join(c.dir, "users.xml"), []byte(b.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if c.cmd != nil {
		c.admin("SYSTEM RELOAD CONFIG")
	}
}

// start starts the server and waits until it says that it is ready.
func (c *clickHouse) start() {
	c.t.Helper()
	r, w := io.Pipe()
	c.cmd = exec.Command("clickhouse-server", "--config-file="+filepath.Join(c.dir, "config.xml"))
	c.cmd.Dir = c.dir
	c.cmd.Stdout, c.cmd.Stderr = w, w
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	cmd, done := c.cmd, make(chan struct{})
	c.done = done
	go func() {
		cmd.Wait()
		w.Close()
		close(done)
	}()
	ready := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		said := false
		for sc := bufio.NewScanner(r); sc.Scan(); {
			fmt.Fprintln(&all, sc.Text())
			if !said && strings.Contains(sc.Text(), "Ready for connections") {
				said = true
				ready <- ""
			}
		}
		if !said {
			ready <- all.String()
		}
	}()
	if said := <-ready; said != "" {
		c.t.Fatalf("clickhouse-server did not start:\n%s", said)
	}
}

func (c *clickHouse) stop() {
	if c.cmd != nil {
		syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-c.done
		c.cmd = nil
	}
}

// admin runs a statement as the administrator.
func (c *clickHouse) admin(statement string) string {
	c.t.Helper()
	req, err := http.NewRequest("POST", "http://127.0.0.1:"+c.port+"/", strings.NewReader(statement))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-ClickHouse-User", "admin")
	req.Header.Set("X-ClickHouse-Key", firstUsers[0].password)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		c.t.Fatalf("%s: %s: %s, %v", statement, resp.Status, body, err)
	}
	return string(body)
}
