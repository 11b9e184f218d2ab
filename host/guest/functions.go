package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// Modules from which a guest may import.
const (
	envModule  = "extism:host/env"
	userModule = "extism:host/user"
	wasiModule = "wasi_snapshot_preview1"
)

// has reports whether g includes all of need.
func (g Grants) has(need Grants) bool { return g&need == need }

// always is the need of a function that every module has.
const always Grants = 0

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

type types = []api.ValueType

// hostFunc is one function that a guest may import.
type hostFunc struct {
	module, name    string
	needs           Grants
	params, results types
	fn              func(c *call, s []uint64)
}

// hostFuncs lists all functions of both modules. It is built once for each engine.
func hostFuncs() []hostFunc {
	var (
		none = types{}
		d    = types{i64}
		dd   = types{i64, i64}
		w    = types{i32}
	)
	env := func(name string, p, r types, fn func(c *call, s []uint64)) hostFunc {
		return hostFunc{envModule, name, always, p, r, fn}
	}
	user := func(name string, g Grants, p, r types, fn func(c *call, s []uint64)) hostFunc {
		return hostFunc{userModule, name, g, p, r, fn}
	}
	log := func(name string, level slog.Level) hostFunc {
		return env(name, d, none, func(c *call, s []uint64) {
			c.logLine(level, c.k.bytes(s[0]))
			c.k.release(s[0])
		})
	}
	return []hostFunc{
		env("alloc", d, d, func(c *call, s []uint64) {
			c.charge(s[0])
			if c.k.free > 0 { // it may scan all blocks
				c.charge(uint64(len(c.k.blocks)))
			}
			s[0] = c.k.alloc(s[0])
		}),
		env("free", d, none, func(c *call, s []uint64) { c.k.release(s[0]) }),
		env("length", d, d, func(c *call, s []uint64) { s[0] = c.k.blockLen(s[0]) }),
		env("length_unsafe", d, d, func(c *call, s []uint64) { s[0] = c.k.blockLen(s[0]) }),
		env("load_u8", d, w, func(c *call, s []uint64) { s[0] = uint64(c.k.load8(s[0])) }),
		env("load_u64", d, d, func(c *call, s []uint64) { s[0] = c.k.load64(s[0]) }),
		env("store_u8", types{i64, i32}, none, func(c *call, s []uint64) { c.k.store8(s[0], byte(s[1])) }),
		env("store_u64", dd, none, func(c *call, s []uint64) { c.k.store64(s[0], s[1]) }),
		env("input_set", dd, none, func(c *call, s []uint64) { c.k.setInput(s[0], s[1]) }),
		env("input_length", none, d, func(c *call, s []uint64) { s[0] = c.k.inLen }),
		env("input_offset", none, d, func(c *call, s []uint64) { s[0] = c.k.inOff }),
		env("input_load_u8", d, w, func(c *call, s []uint64) { s[0] = uint64(c.k.inputLoad8(s[0])) }),
		env("input_load_u64", d, d, func(c *call, s []uint64) { s[0] = c.k.inputLoad64(s[0]) }),
		env("output_set", dd, none, func(c *call, s []uint64) { c.k.setOutput(s[0], s[1]) }),
		env("output_length", none, d, func(c *call, s []uint64) { s[0] = c.k.outLen }),
		env("output_offset", none, d, func(c *call, s []uint64) { s[0] = c.k.outOff }),
		env("error_set", d, none, func(c *call, s []uint64) { c.k.setError(s[0]) }),
		env("error_get", none, d, func(c *call, s []uint64) { s[0] = c.k.errOff }),
		env("reset", none, none, func(c *call, s []uint64) { c.charge(c.k.next); c.k.clear() }),
		env("memory_bytes", none, d, func(c *call, s []uint64) { s[0] = c.k.length }),

		env("config_get", d, d, configGet),
		env("get_log_level", none, w, func(c *call, s []uint64) { s[0] = 0 }), // trace: the host decides what is kept
		log("log_trace", slog.LevelDebug-4),
		log("log_debug", slog.LevelDebug),
		log("log_info", slog.LevelInfo),
		log("log_warn", slog.LevelWarn),
		log("log_error", slog.LevelError),

		{envModule, "var_get", GrantState, d, d, varGet},
		{envModule, "var_set", GrantState, dd, none, varSet},
		{envModule, "http_request", GrantHTTP, dd, d, httpRequest},
		{envModule, "http_status_code", GrantHTTP, none, w, func(c *call, s []uint64) { s[0] = uint64(uint32(c.httpStatus)) }},
		{envModule, "http_headers", GrantHTTP, none, d, httpHeaders},

		user("tool_exec", GrantExec, d, d, toolExec),
		user("tool_emit", always, d, d, toolEmit),
		user("tool_recv", always, d, d, toolRecv),
		user("tool_call", GrantToolCall, d, d, toolCall),
		user("tool_read", always, types{i32, i64, i32}, w, toolRead),
		user("tool_write", always, types{i32, i32}, none, toolWrite),
	}
}

// exportFuncs adds those functions of one module that gs grants.
func exportFuncs(b wazero.HostModuleBuilder, module string, fns []hostFunc, gs Grants) {
	for _, f := range fns {
		if f.module == module && gs.has(f.needs) {
			f.export(b)
		}
	}
}

// export adds the function to a host module.
func (f hostFunc) export(b wazero.HostModuleBuilder) {
	b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, m api.Module, s []uint64) {
		c := ctx.(*call)
		c.guest = m
		f.fn(c, s)
	}), f.params, f.results).Export(f.name)
}

func configGet(c *call, s []uint64) {
	v, ok := c.config[string(c.k.bytes(s[0]))]
	if !ok {
		s[0] = 0
		return
	}
	s[0] = c.answer([]byte(v))
}

func varGet(c *call, s []uint64) {
	name := s[0]
	var v []byte
	if c.inv.VarGet != nil {
		v = c.inv.VarGet(string(c.k.bytes(name)))
	}
	if v == nil {
		s[0] = 0
	} else {
		s[0] = c.answer(v)
	}
	c.k.release(name)
}

// borrow takes from the account the memory that a host function needs to process a
// guest's block: twice its bytes, plus the overhead of each JSON element. The returned
// function gives it back.
func (c *call) borrow(p []byte) func() {
	n := int64(2*len(p) + 128*bytes.Count(p, []byte{','}))
	if !c.k.held.take(n) {
		panic(c.inst.m.overloaded())
	}
	return func() { c.k.held.give(n) }
}

func varSet(c *call, s []uint64) {
	defer c.borrow(c.k.bytes(s[1]))()
	key := string(c.k.bytes(s[0]))
	var v []byte
	if s[1] != 0 {
		v = append([]byte{}, c.k.bytes(s[1])...)
	}
	c.k.release(s[0])
	c.k.release(s[1])
	c.charge(uint64(len(key) + len(v)))
	if c.inv.VarSet == nil {
		panic(c.inst.m.errorf(Internal, "", "it set a variable, but this call keeps no state"))
	}
	if err := c.inv.VarSet(key, v); err != nil {
		panic(err)
	}
}

// httpRequest never traps a module built for this host: a failure is status 0 and a
// body with the error, since most SDKs have no other way to report it. A stock plugin
// would take that for the server's response, so its call fails, as on any other Extism
// host.
func httpRequest(c *call, s []uint64) {
	req, body := s[0], s[1]
	defer c.borrow(c.k.bytes(req))()
	defer c.borrow(c.k.bytes(body))()
	c.httpStatus, c.httpHeader = 0, nil
	res, err := func() (*HTTPResponse, error) {
		var r HTTPRequest
		if err := json.Unmarshal(c.k.bytes(req), &r); err != nil {
			return nil, errors.New("request is not JSON: " + err.Error())
		}
		if r.Method == "" {
			r.Method = "GET"
		}
		r.Method = strings.ToUpper(r.Method)
		r.Body = append([]byte(nil), c.k.bytes(body)...)
		if c.inv.HTTP == nil {
			return nil, errors.New("this call has no network")
		}
		c.wait()
		return c.inv.HTTP(c, &r)
	}()
	c.checkCanceled()
	if err != nil && c.inst.m.stock {
		panic(c.inst.m.errorf(Failed, "", "http_request: %s", err)) // only the text: the cause of a failed request is not the cause of the call's failure
	}
	if err != nil {
		s[0] = c.answer([]byte(err.Error()))
	} else {
		c.httpStatus, c.httpHeader = res.Status, res.Headers
		s[0] = c.answer(res.Body)
	}
	c.k.release(req)
	c.k.release(body)
}

func httpHeaders(c *call, s []uint64) {
	if c.httpHeader == nil {
		s[0] = 0
		return
	}
	h := make(map[string]string, len(c.httpHeader))
	for k, v := range c.httpHeader {
		h[strings.ToLower(k)] = v
	}
	s[0] = c.answerJSON(h)
}

func toolExec(c *call, s []uint64) {
	defer c.borrow(c.k.bytes(s[0]))()
	var res *abi.ExecResult
	var req abi.ExecRequest
	switch err := strictjson.Unmarshal(c.k.bytes(s[0]), &req); {
	case err != nil:
		res = &abi.ExecResult{Error: &abi.Error{Code: string(fault.InvalidPayload), Message: "tool_exec: read request: " + err.Error()}}
	case c.inv.Exec == nil:
		res = &abi.ExecResult{Error: &abi.Error{Code: string(fault.Denied), Message: "tool_exec: this call may not run programs"}}
	default:
		c.wait()
		res = c.inv.Exec(c, &req)
	}
	c.checkCanceled()
	s[0] = c.answerJSON(res)
}

func toolEmit(c *call, s []uint64) {
	defer c.borrow(c.k.bytes(s[0]))()
	var res abi.EmitResult
	var req abi.EmitRequest
	err := strictjson.Unmarshal(c.k.bytes(s[0]), &req)
	var p []byte
	if err == nil {
		p, err = base64.StdEncoding.DecodeString(req.DataBase64)
	}
	switch {
	case err != nil:
		err = errors.New("tool_emit: read request: " + err.Error())
	case req.Stream != "stdout" && req.Stream != "stderr" && req.Stream != "progress":
		err = errors.New(`tool_emit: stream must be "stdout", "stderr" or "progress"`)
	case c.inv.Emit == nil:
		err = errors.New("tool_emit: this call has no output")
	default:
		c.wait()
		err = c.inv.Emit(req.Stream, p)
	}
	c.checkCanceled()
	res.Error = abiError(err)
	s[0] = c.answerJSON(res)
}

func toolRecv(c *call, s []uint64) {
	var res abi.RecvResult
	if c.inv.Recv == nil {
		res.EOF = true
	} else {
		c.wait()
		p, err := c.inv.Recv(c)
		if c.hasDeadline { // the deadline moves if its clock was paused meanwhile
			c.deadline, c.hasDeadline = c.Deadline()
		}
		switch {
		case err == io.EOF:
			res.EOF = true
		case err != nil:
			res.Error = abiError(err)
		default:
			res.DataBase64 = base64.StdEncoding.EncodeToString(p)
		}
	}
	c.checkCanceled()
	s[0] = c.answerJSON(res)
}

func toolCall(c *call, s []uint64) {
	if c.inv.ToolCall == nil {
		s[0] = 0
		return
	}
	defer c.borrow(c.k.bytes(s[0]))()
	c.wait()
	// The callee may outlive this call, and c then belongs to the next one.
	out, took, err := c.inv.ToolCall(c.Context, max(c.meter.limit-c.meter.used(), 1), append([]byte(nil), c.k.bytes(s[0])...))
	c.checkCanceled()
	c.lent(took)
	if err != nil {
		panic(err)
	}
	s[0] = c.answer(out)
}

// toolRead copies input into the guest's memory: dst, offset, length. It returns the
// number of bytes copied.
func toolRead(c *call, s []uint64) {
	dst, off, n := uint32(s[0]), s[1], uint64(uint32(s[2]))
	if off >= c.k.inLen {
		s[0] = 0
		return
	}
	n = min(n, c.k.inLen-off)
	c.charge(n)
	mem := memory(c.guest)
	if mem == nil {
		panic(errors.New("tool_read: the module has no memory"))
	}
	p, ok := mem.Read(dst, uint32(n))
	if !ok {
		panic(errors.New("tool_read: destination is outside of the memory"))
	}
	at := c.k.inOff + off
	got := 0
	if at < uint64(len(c.k.mem)) {
		got = copy(p, c.k.mem[at:])
	}
	clear(p[got:])
	s[0] = n
}

// toolWrite appends to the output.
func toolWrite(c *call, s []uint64) {
	mem := memory(c.guest)
	if mem == nil {
		panic(errors.New("tool_write: the module has no memory"))
	}
	p, ok := mem.Read(uint32(s[0]), uint32(s[1]))
	if !ok {
		panic(errors.New("tool_write: source is outside of the memory"))
	}
	c.charge(uint64(len(p)))
	if int64(len(c.out)+len(p)) > c.inst.m.spec.Output {
		panic(c.inst.m.tooMuchOutput())
	}
	if c.out, ok = enlarge(&c.k.held, c.out, len(p), 0); !ok {
		panic(c.inst.m.overloaded())
	}
	c.out = append(c.out, p...)
	c.wrote = true
}

func abiError(err error) *abi.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return &abi.Error{Code: string(e.Code), Message: e.Message, Retriable: e.Retriable()}
	}
	return &abi.Error{Message: err.Error()}
}

// Limits on a guest's log output.
const (
	maxLogLine = 8 << 10   // a longer line is cut
	maxLogCall = 256 << 10 // bytes per call; the rest is dropped
	logAround  = 256       // bytes added to a line's length for its metadata in the log
)

func (c *call) logLine(level slog.Level, p []byte) {
	c.charge(uint64(len(p) + logAround))
	if c.inv.Log == nil || c.logged >= maxLogCall {
		return
	}
	cut := ""
	if len(p) > maxLogLine {
		p, cut = p[:maxLogLine], " (cut)"
	}
	c.logged += len(p) + logAround
	text := string(p)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	c.inv.Log(c, level, text+cut)
	if c.logged >= maxLogCall {
		c.inv.Log(c, slog.LevelWarn, "the module logged more than a call may; the rest is dropped")
	}
}

// answer writes the result of a host function to the kernel's memory and returns its
// offset.
func (c *call) answer(p []byte) uint64 {
	c.charge(uint64(len(p)))
	return c.k.write(p)
}

func (c *call) answerJSON(v any) uint64 {
	p, err := json.Marshal(v)
	if err != nil {
		panic(c.inst.m.errorf(Internal, "", "encode answer of a host function: %w", err))
	}
	return c.answer(p)
}
