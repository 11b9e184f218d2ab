package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the two tools that are nothing but WebAssembly, as
// they are shipped.
func TestThroughDaemon(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "echo", "hash")
	stream := func(tool, stdin string, args ...string) (*wire.Result, string) {
		t.Helper()
		res, out, errs := d.Stream(t, &wire.Call{Tool: tool, Args: args}, stdin)
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		return res, out + errs
	}
	ask := func(tool, payload string) *wire.Result {
		t.Helper()
		res, err := client.Call(t.Context(), d.Socket, &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: "0d3b8f0a-7a44-4a53-9b8b-3f1a6b5d2c11", Payload: json.RawMessage(payload)})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if _, out := stream("echo", "", "a", "b"); out != "a b\n" {
		t.Errorf("echo a b: %q", out)
	}
	in := strings.Repeat("\x00\xff line\n", 100_000)
	if _, out := stream("echo", in); out != in {
		t.Errorf("%d bytes of input came back as %d", len(in), len(out))
	}
	if r := ask("echo", `{"a":[1]}`); r.Err != nil || string(r.Data) != `{"a":[1]}` {
		t.Errorf("echo of a payload: %s, %v", r.Data, r.Err)
	}
	if _, out := stream("hash", "abc"); out != sha256abc+"\n" {
		t.Errorf("hash < abc: %q", out)
	}
	if _, out := stream("hash", "", "-a", "md5", "abc"); out != md5abc+"\n" {
		t.Errorf("hash -a md5 abc: %q", out)
	}
	if res, out := stream("hash", "", "--crc"); res.ExitCode != 2 || !strings.Contains(out, "--crc") {
		t.Errorf("hash --crc: exit %d: %q", res.ExitCode, out)
	}
	if r := ask("hash", `{"algorithm":"sha1","text":"abc"}`); r.Err != nil || !strings.Contains(string(r.Data), sha1abc) {
		t.Errorf("hash of a payload: %s, %v", r.Data, r.Err)
	}
	if r := ask("hash", `{"txt":"abc"}`); r.Err == nil || r.Err.Code != fault.InvalidPayload || !strings.Contains(r.Err.Message, "txt") {
		t.Errorf("a payload that does not fit: %v", r.Err)
	}
}
