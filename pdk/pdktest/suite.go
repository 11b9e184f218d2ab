package pdktest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/pdktest/vectors"
)

// callTime bounds one call of a guest under test.
const callTime = 20 * time.Second

// Run loads a module and runs the whole suite on it, a subtest a case.
func Run(t *testing.T, wasm []byte) {
	t.Helper()
	all, err := vectors.Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	s := NewSubject(t, wasm)
	for _, c := range s.Cases(all) {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// folder is pdk/testdata of the module around the working directory.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		data := filepath.Join(dir, "pdk", "testdata")
		if _, err := os.Stat(filepath.Join(data, "handle.json")); err == nil {
			return data
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("find pdk/testdata: run the suite inside of a checkout of toold")
		}
		dir = filepath.Dir(dir)
	}
}

// Subject is a guest under test.
type Subject struct {
	m *guest.Module
	// config is added to that of every case.
	config map[string]string
	// vars outlive the calls of handle.
	vars map[string][]byte
}

// NewSubject loads a module with everything granted, and fuel without end: how
// fast a guest is, is no rule of the interface.
func NewSubject(t *testing.T, wasm []byte) *Subject {
	t.Helper()
	e, err := guest.New(guest.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.Load(t.Context(), guest.Spec{Name: "conformance.wasm", Wasm: wasm, Fuel: 1e12, Grants: guest.AllGrants})
	if err != nil {
		e.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Subject{m: m, vars: map[string][]byte{}}
}

// Case is one check of the suite.
type Case struct {
	Name  string
	Check func(context.Context) error
}

// Cases are the vectors, and the checks that a vector cannot say.
func (s *Subject) Cases(all []vectors.Vector) []Case {
	var cases []Case
	for _, v := range all {
		cases = append(cases, Case{v.Export + "/" + v.Name, func(ctx context.Context) error { return s.vector(ctx, v) }})
	}
	return append(cases,
		Case{"exports", s.exports},
		Case{"fresh state", s.freshState},
		Case{"large input", s.largeInput},
		Case{"large output", s.largeOutput},
		Case{"large payload", s.largePayload},
	)
}

// services are a vector's host, to the engine.
func services(h *vectors.Host) guest.Services {
	return guest.Services{
		Log:    func(_ context.Context, level slog.Level, text string) { h.Log(strings.ToLower(level.String()), text) },
		VarGet: h.VarGet,
		VarSet: func(key string, value []byte) error { h.VarSet(key, value); return nil },
		Emit:   func(stream string, p []byte) error { h.Emit(stream, p); return nil },
		Recv:   func(context.Context) ([]byte, error) { return h.Recv() },
		HTTP: func(_ context.Context, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
			a, err := h.HTTP(vectors.HTTPAsked{Method: r.Method, URL: r.URL, Headers: r.Headers, Body: string(r.Body)})
			if err != nil {
				return nil, err
			}
			return &guest.HTTPResponse{Status: a.Status, Headers: a.Headers, Body: []byte(a.Body)}, nil
		},
		Exec: func(_ context.Context, r *abi.ExecRequest) *abi.ExecResult { return h.Exec(r) },
		ToolCall: func(_ context.Context, _ int64, envelope []byte) ([]byte, int64, error) {
			return h.ToolCall(envelope), 0, nil
		},
	}
}

// Call makes the call of a vector with a host of its, and returns both the
// answer and the host.
func Call(ctx context.Context, m *guest.Module, v *vectors.Vector) (guest.Reply, *vectors.Host, error) {
	h := v.Host()
	config := v.Config
	if config == nil {
		config = map[string]string{} // not that of tool.json
	}
	reply, err := m.Call(ctx, guest.Invocation{Export: v.Export, Input: v.Bytes(), Config: config, Services: services(h)})
	return reply, h, err
}

func (s *Subject) vector(ctx context.Context, v vectors.Vector) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	v.Config = maps.Clone(v.Config)
	if v.Config == nil {
		v.Config = map[string]string{}
	}
	maps.Copy(v.Config, s.config)
	reply, h, err := Call(ctx, s.m, &v)
	if v.Fails != nil {
		e, ok := errors.AsType[*fault.Error](tools.Explain(err))
		if !ok {
			return fmt.Errorf("answered %s, must fail with one of %v", reply.Output, v.Fails)
		}
		if !slices.Contains(v.Fails, e.Code) || !strings.Contains(e.Message, v.Message) {
			return fmt.Errorf("failed with %w, must fail with one of %v and %q", e, v.Fails, v.Message)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed: %w", err)
	}
	if err := v.CheckAnswer(reply.Output); err != nil {
		return err
	}
	return h.Check()
}

func (s *Subject) exports(context.Context) error {
	for _, name := range []string{"describe", "restrict", "handle", "discover", "classify", "reconcile", "wire"} {
		if !s.m.Has(name) {
			return fmt.Errorf("there is no export %s without parameters", name)
		}
	}
	return nil
}

// handle calls the handler with variables and no other services, and reads its
// answer.
func (s *Subject) handle(ctx context.Context, c *abi.Call) (*abi.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	in, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	reply, err := s.m.Call(ctx, guest.Invocation{Export: "handle", Input: in, Config: s.config, Services: guest.Services{
		VarGet: func(key string) []byte { return s.vars[key] },
		VarSet: func(key string, value []byte) error { s.vars[key] = value; return nil },
	}})
	if err != nil {
		return nil, err
	}
	var r abi.Result
	return &r, strictjson.Unmarshal(reply.Output, &r)
}

// freshState: each call begins where initialisation ended. It is the engine
// that promises so; an SDK can spoil it by keeping state in a host variable.
func (s *Subject) freshState(ctx context.Context) error {
	for i := range 3 {
		r, err := s.handle(ctx, &abi.Call{Tool: "pdktest", Args: []string{"count"}})
		if err != nil {
			return err
		}
		if got, err := vectors.Canonical(r.Data); err != nil || string(got) != `{"count":1}` {
			return fmt.Errorf("call %d answered %s, must be {\"count\":1}", i+1, r.Data)
		}
	}
	return nil
}

// large is more than any buffer that an SDK may have fixed.
const large = 3_000_001

func (s *Subject) largeInput(ctx context.Context) error {
	for _, n := range []int{0, 1, 7, 8, 9, 65535, 65536, 65537, large} {
		in := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xa5}, n))
		r, err := s.handle(ctx, &abi.Call{Tool: "pdktest", Args: []string{"length"}, StdinBase64: in})
		if err != nil {
			return fmt.Errorf("%d bytes of input: %w", n, err)
		}
		if got, err := vectors.Canonical(r.Data); err != nil || string(got) != fmt.Sprintf(`{"length":%d}`, n) {
			return fmt.Errorf("%d bytes of input: answered %s", n, r.Data)
		}
	}
	return nil
}

func (s *Subject) largeOutput(ctx context.Context) error {
	for _, n := range []int{0, 1, 7, 8, 9, 65535, 65536, 65537, large} {
		r, err := s.handle(ctx, &abi.Call{Tool: "pdktest", Args: []string{"large", fmt.Sprint(n)}})
		if err != nil {
			return fmt.Errorf("%d bytes of output: %w", n, err)
		}
		if len(r.Stdout) != n || strings.Trim(r.Stdout, "x") != "" {
			return fmt.Errorf("%d bytes of output: answered %d, or others", n, len(r.Stdout))
		}
	}
	return nil
}

func (s *Subject) largePayload(ctx context.Context) error {
	list := make([]int, 100_000)
	for i := range list {
		list[i] = i
	}
	payload, err := json.Marshal(map[string]any{"list": list})
	if err != nil {
		return err
	}
	r, err := s.handle(ctx, &abi.Call{Tool: "pdktest", Args: []string{"data"}, Payload: payload})
	if err != nil {
		return err
	}
	if got, err := vectors.Canonical(r.Data); err != nil || !bytes.Equal(got, payload) {
		return fmt.Errorf("a payload of %d bytes came back as %d others", len(payload), len(r.Data))
	}
	return nil
}
