package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// exchange sends lines over a kept connection and reads the answer to each.
func exchange(b *testing.B, path, first, line string) func() {
	b.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	in := bufio.NewReaderSize(nc, 64<<10)
	send := func(line string) string {
		if _, err := nc.Write([]byte(line)); err != nil {
			b.Fatal(err)
		}
		answer, err := in.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		return answer
	}
	send(first)
	fmt.Fprintln(nc, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	id := 10
	return func() {
		id++
		if answer := send(strings.Replace(line, "%d", strconv.Itoa(id), 1)); !strings.Contains(answer, "some words") {
			b.Fatalf("answered %q", answer)
		}
	}
}

// BenchmarkCall is a call of a module over MCP on a socket, beside the same call in
// the plain form, and an equal tool of a server of the SDK that has no daemon behind
// it. "ratio" is of the medians of the first two.
func BenchmarkCall(b *testing.B) {
	dir := b.TempDir()
	path, alone := filepath.Join(dir, "m"), filepath.Join(dir, "s")
	d := hosttest.Start(b, config.Config{Sockets: []config.Socket{{Path: path, Protocol: config.ProtocolMCP}}})
	d.Tool(b, "echo", object{"capabilities": object{"exec": []string{"/bin/echo"}, "state": 1024, "http": object{"hosts": []string{"nowhere.example"}}}},
		map[string]string{"handler.wasm": hosttest.Guest(b, "host/testdata/guests/handler")})

	l, err := net.Listen("unix", alone)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	server := sdk.NewServer(&sdk.Implementation{Name: "alone", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, q *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var p struct{ Args []string }
		if err := json.Unmarshal(q.Params.Arguments, &p); err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: strings.Join(p.Args, " ")}}}, nil
	})
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if s, err := server.Connect(context.Background(), &sdk.IOTransport{Reader: nc, Writer: nc}, nil); err == nil {
				go s.Wait()
			}
		}
	}()

	plain, err := json.Marshal(object{"tool": "echo", "args": []string{"some", "words"}, "cwd": d.Root})
	if err != nil {
		b.Fatal(err)
	}
	nc, err := net.Dial("unix", d.Socket)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { nc.Close() })
	const call = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"args":["some","words"]}}}` + "\n"
	hello := hello + "\n"
	ways := []struct {
		name string
		run  func()
		took []time.Duration
	}{
		{name: "mcp", run: exchange(b, path, hello, call)},
		{name: "plain", run: func() {
			if err := wire.WriteFrame(nc, plain); err != nil {
				b.Fatal(err)
			}
			if answer, err := wire.ReadFrame(nc); err != nil || !strings.Contains(string(answer), "some words") {
				b.Fatalf("answered %q, %v", answer, err)
			}
		}},
		{name: "sdk", run: exchange(b, alone, hello, call)},
	}
	for range 20 { // which loads the tool
		for _, w := range ways {
			w.run()
		}
	}
	for b.Loop() { // in turn, so that a machine that changes its speed does for all
		for i := range ways {
			start := time.Now()
			ways[i].run()
			ways[i].took = append(ways[i].took, time.Since(start))
		}
	}
	medians := map[string]float64{}
	for _, w := range ways {
		slices.Sort(w.took)
		medians[w.name] = float64(w.took[len(w.took)/2].Nanoseconds()) / 1e3
		b.ReportMetric(medians[w.name], w.name+"-µs")
	}
	b.ReportMetric(medians["mcp"]/medians["plain"], "ratio")
	b.ReportMetric(0, "ns/op") // of all of them together: says nothing
}
