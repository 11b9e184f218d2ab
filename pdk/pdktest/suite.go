package pdktest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// callTime bounds one call of a guest under test.
const callTime = 20 * time.Second

// Run loads a module and runs the whole suite on it, a subtest a case.
func Run(t *testing.T, wasm []byte) {
	t.Helper()
	vectors, err := Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	s := NewSubject(t, wasm)
	for _, c := range s.Cases(vectors) {
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
		vectors := filepath.Join(dir, "pdk", "testdata")
		if _, err := os.Stat(filepath.Join(vectors, "handle.json")); err == nil {
			return vectors
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
	m, err := e.Load(t.Context(), guest.Spec{Name: "conformance.wasm", Wasm: wasm, Fuel: 1e12, Grants: guest.Grants{Exec: true, HTTP: true, State: true, ToolCall: true}})
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
func (s *Subject) Cases(vectors []Vector) []Case {
	var cases []Case
	for _, v := range vectors {
		cases = append(cases, Case{v.Export + "/" + v.Name, func(ctx context.Context) error { return s.vector(ctx, &v) }})
	}
	return append(cases,
		Case{"exports", s.exports},
		Case{"fresh state", s.freshState},
		Case{"large input", s.largeInput},
		Case{"large output", s.largeOutput},
		Case{"large payload", s.largePayload},
	)
}

// told is what the host was asked and told during a call.
type told struct {
	log      []Line
	emitted  []Emitted
	vars     map[string]string
	http     *HTTPAsked
	exec     *abi.ExecRequest
	toolCall []byte
}

// host makes a host of a vector.
func (s *Subject) host(v *Vector) (guest.Invocation, *told) {
	w := &told{vars: maps.Clone(v.Vars)}
	if w.vars == nil {
		w.vars = map[string]string{}
	}
	recv := v.Recv
	inv := guest.Invocation{Export: v.Export, Input: v.Bytes(), Config: maps.Clone(v.Config)}
	if inv.Config == nil {
		inv.Config = map[string]string{}
	}
	maps.Copy(inv.Config, s.config)
	inv.Services = guest.Services{
		Log: func(_ context.Context, level slog.Level, text string) {
			w.log = append(w.log, Line{strings.ToLower(level.String()), text})
		},
		VarGet: func(key string) []byte {
			if value, ok := w.vars[key]; ok {
				return []byte(value)
			}
			return nil
		},
		VarSet: func(key string, value []byte) error {
			if value == nil {
				delete(w.vars, key)
			} else {
				w.vars[key] = string(value)
			}
			return nil
		},
		Emit: func(stream string, p []byte) error {
			w.emitted = append(w.emitted, Emitted{stream, string(p)})
			return nil
		},
		Recv: func(context.Context) ([]byte, error) {
			if len(recv) == 0 {
				return nil, io.EOF
			}
			p := recv[0]
			recv = recv[1:]
			return []byte(p), nil
		},
		HTTP: func(_ context.Context, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
			w.http = &HTTPAsked{r.Method, r.URL, r.Headers, string(r.Body)}
			switch {
			case v.HTTP == nil:
				return nil, errors.New("this case has no answer")
			case v.HTTP.Error != "":
				return nil, errors.New(v.HTTP.Error)
			}
			return &guest.HTTPResponse{Status: v.HTTP.Status, Headers: v.HTTP.Headers, Body: []byte(v.HTTP.Body)}, nil
		},
		Exec: func(_ context.Context, r *abi.ExecRequest) *abi.ExecResult {
			w.exec = r
			if v.Exec == nil {
				return &abi.ExecResult{Error: &abi.Error{Message: "this case has no answer"}}
			}
			return v.Exec
		},
		ToolCall: func(_ context.Context, envelope []byte) ([]byte, error) {
			w.toolCall = bytes.Clone(envelope)
			return v.ToolCall, nil
		},
	}
	return inv, w
}

func (s *Subject) vector(ctx context.Context, v *Vector) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	inv, w := s.host(v)
	reply, err := s.m.Call(ctx, inv)
	if v.Fails != nil {
		var e *fault.Error
		if !errors.As(err, &e) {
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
	return v.compare(w)
}

// compare looks at what the host was asked and told.
func (v *Vector) compare(w *told) error {
	vars := v.VarsAfter
	if vars == nil {
		vars = v.Vars
	}
	switch {
	case !slices.Equal(w.log, v.Log):
		return fmt.Errorf("logged %+v, must be %+v", w.log, v.Log)
	case !slices.Equal(w.emitted, v.Emitted):
		return fmt.Errorf("emitted %+v, must be %+v", w.emitted, v.Emitted)
	case !maps.Equal(w.vars, vars):
		return fmt.Errorf("left variables %v, must be %v", w.vars, vars)
	case !reflect.DeepEqual(w.exec, v.AskedExec):
		return fmt.Errorf("ran %+v, must be %+v", w.exec, v.AskedExec)
	case (w.http == nil) != (v.AskedHTTP == nil):
		return fmt.Errorf("asked %+v, must be %+v", w.http, v.AskedHTTP)
	case (w.toolCall == nil) != (v.AskedForCall == nil):
		return fmt.Errorf("called %s, must be %s", w.toolCall, v.AskedForCall)
	}
	if w.http != nil {
		// Names of headers are of no case.
		got := *w.http
		got.Headers = map[string]string{}
		for k, value := range w.http.Headers {
			got.Headers[strings.ToLower(k)] = value
		}
		if !reflect.DeepEqual(&got, v.AskedHTTP) {
			return fmt.Errorf("asked %+v, must be %+v", got, *v.AskedHTTP)
		}
	}
	if w.toolCall != nil {
		got, err := sorted(w.toolCall)
		if err != nil {
			return fmt.Errorf("called with what is no JSON: %w: %s", err, w.toolCall)
		}
		if want, err := sorted(v.AskedForCall); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("called with %s, must be %s", got, want)
		}
	}
	return nil
}

func (s *Subject) exports(context.Context) error {
	for _, name := range []string{"describe", "restrict", "handle", "discover", "classify"} {
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
		if got, err := sorted(r.Data); err != nil || string(got) != `{"count":1}` {
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
		if got, err := sorted(r.Data); err != nil || string(got) != fmt.Sprintf(`{"length":%d}`, n) {
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
	if got, err := sorted(r.Data); err != nil || !bytes.Equal(got, payload) {
		return fmt.Errorf("a payload of %d bytes came back as %d others", len(payload), len(r.Data))
	}
	return nil
}
