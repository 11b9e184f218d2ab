package mcp_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/mcp"
)

// Clients of every kind connect, call and vanish, over HTTP and the socket, beside some
// that flood, do not read, and send 100 MB: nothing is left of any. TOOLD_MCP_CLIENTS is
// how many, 100 without it.
func TestVanishingClients(t *testing.T) {
	count := 100
	if n, err := strconv.Atoi(os.Getenv("TOOLD_MCP_CLIENTS")); err == nil {
		count = n
	}
	s := web(t, config.Config{}, map[string]object{"dd": {"binary": "dd", "limits": object{"concurrency": 64}}}, showing(t, object{"limits": object{"concurrency": 64}}))
	path := s.Config.Sockets[0].Path
	token := s.Token(t, object{"sub": "alice"})
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`
	dialed := func() net.Conn { return dial(t, path, mcp.Caller{Token: token, Cwd: s.Root}).Writer.(net.Conn) }
	send := func(nc net.Conn, lines ...string) {
		for _, line := range lines {
			io.WriteString(nc, line+"\n") // the daemon may be the one that closes
		}
	}
	over := func(version string, use func(ctx context.Context, c *sdk.ClientSession)) {
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		ctx, cancel := context.WithCancel(bound(t))
		defer cancel()
		c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx,
			&sdk.StreamableClientTransport{Endpoint: s.url, HTTPClient: &http.Client{Transport: bearer{token, transport}}}, &sdk.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Errorf("connect: %v", err)
			return
		}
		defer c.Close()
		use(ctx, c)
	}
	whole := func(ctx context.Context, c *sdk.ClientSession) {
		if r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "greet", Arguments: object{"name": "you"}}); err != nil || text(r) != "Hello, you!" {
			t.Errorf("a whole call: %v, %v", r, err)
		}
	}
	client := func(i int) {
		fifo := filepath.Join(s.Root, "gate-"+strconv.Itoa(i))
		reads := `{"args":["if=` + fifo + `","of=/dev/null","status=none"]}`
		// ends waits for the process that reads the gate, has its client vanish, and
		// waits for the end of the process.
		ends := func(vanish func()) {
			gate := awaitReader(t, fifo)
			vanish()
			awaitEnd(t, gate)
			gate.Close()
			os.Remove(fifo)
		}
		if i%8 < 3 {
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Error(err)
				return
			}
		}
		switch i % 8 {
		case 0: // vanishes from the socket while its process runs
			nc := dialed()
			send(nc, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dd","arguments":`+reads+`,`+meta+`}}`)
			ends(func() { nc.Close() })
		case 1, 2: // vanishes from HTTP while its process runs
			over([]string{oldest, newest}[i%2], func(ctx context.Context, c *sdk.ClientSession) {
				ctx, cancel := context.WithCancel(ctx)
				var calling sync.WaitGroup
				calling.Go(func() {
					c.CallTool(ctx, &sdk.CallToolParams{Name: "dd", Arguments: object{"args": []string{"if=" + fifo, "of=/dev/null", "status=none"}, "cwd": s.Root}})
				})
				ends(cancel)
				calling.Wait()
			})
		case 3:
			over(oldest, whole)
		case 4:
			over(newest, whole)
		case 5: // is asked, and never answers
			nc := dialed()
			defer nc.Close()
			send(nc, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask_line","arguments":{},`+meta+`}}`)
			b := make([]byte, 4096)
			if n, err := nc.Read(b); err != nil || !strings.Contains(string(b[:n]), "input_required") {
				t.Errorf("asked: %q, %v", b[:n], err)
			}
		case 6: // floods without reading
			nc := dialed()
			defer nc.Close()
			for range 100 {
				send(nc, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","arguments":{"name":"`+strings.Repeat("x", 2000)+`"},`+meta+`}}`)
			}
		case 7: // sends 100 MB; most of these clients a tenth of that
			size := 10 << 20
			if i/8%10 == 0 {
				size = 100 << 20
			}
			nc := dialed()
			defer nc.Close()
			chunk := bytes.Repeat([]byte("x"), 64<<10)
			io.WriteString(nc, `{"jsonrpc":"2.0","id":"huge","method":"tools/call","params":{"name":"greet","arguments":{"name":"`)
			for sent := 0; sent < size; sent += len(chunk) {
				if _, err := nc.Write(chunk); err != nil {
					t.Errorf("a huge argument: %v", err)
					return
				}
			}
			send(nc, `"}}}`)
			b := make([]byte, 4096)
			if n, err := nc.Read(b); err != nil || !strings.Contains(string(b[:n]), `"id":"huge"`) || !strings.Contains(string(b[:n]), "MESSAGE_TOO_LARGE") {
				t.Errorf("a huge argument is answered %q, %v", b[:n], err)
			}
		}
	}
	run := func(from, to int) {
		var all sync.WaitGroup
		places := make(chan struct{}, 32)
		for i := from; i < to; i++ {
			places <- struct{}{}
			all.Go(func() {
				defer func() { <-places }()
				client(i)
			})
		}
		all.Wait()
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	over(newest, whole)
	goroutines := runtime.NumGoroutine()
	run(0, max(count/4, 32)) // what is kept is made
	nothingLeft(t, goroutines, 1<<20)
	files := openFiles(t)
	before := heap()
	run(1000, 1000+count)
	nothingLeft(t, goroutines, files)
	after := heap()
	t.Logf("%d clients: up to %d goroutines before and %d after, up to %d sockets and %d, heap %d KiB and %d KiB", count, goroutines, runtime.NumGoroutine(), files, openFiles(t), before>>10, after>>10)
	// Events of streams that broke are kept for who comes back, up to 16 MiB of them.
	if after > before+24<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	over(newest, whole)
}
