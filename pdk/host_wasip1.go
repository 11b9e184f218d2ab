package pdk

import (
	"encoding/binary"
	"encoding/json"
	"errors"
)

// The Extism kernel. Offsets are into its memory, never into the guest's; a
// zero offset is "nothing".

//go:wasmimport extism:host/env input_length
func inputLength() uint64

//go:wasmimport extism:host/env input_load_u8
func inputLoadU8(off uint64) uint32

//go:wasmimport extism:host/env input_load_u64
func inputLoadU64(off uint64) uint64

//go:wasmimport extism:host/env alloc
func kernelAlloc(n uint64) uint64

//go:wasmimport extism:host/env free
func kernelFree(off uint64)

//go:wasmimport extism:host/env length
func kernelLength(off uint64) uint64

//go:wasmimport extism:host/env load_u8
func kernelLoadU8(off uint64) uint32

//go:wasmimport extism:host/env load_u64
func kernelLoadU64(off uint64) uint64

//go:wasmimport extism:host/env store_u8
func kernelStoreU8(off uint64, v uint32)

//go:wasmimport extism:host/env store_u64
func kernelStoreU64(off, v uint64)

//go:wasmimport extism:host/env output_set
func kernelOutputSet(off, n uint64)

//go:wasmimport extism:host/env error_set
func kernelErrorSet(off uint64)

//go:wasmimport extism:host/env config_get
func kernelConfigGet(key uint64) uint64

//go:wasmimport extism:host/env var_get
func kernelVarGet(key uint64) uint64

//go:wasmimport extism:host/env var_set
func kernelVarSet(key, value uint64)

//go:wasmimport extism:host/env log_debug
func kernelLogDebug(off uint64)

//go:wasmimport extism:host/env log_info
func kernelLogInfo(off uint64)

//go:wasmimport extism:host/env log_warn
func kernelLogWarn(off uint64)

//go:wasmimport extism:host/env log_error
func kernelLogError(off uint64)

//go:wasmimport extism:host/env http_request
func kernelHTTPRequest(request, body uint64) uint64

//go:wasmimport extism:host/env http_status_code
func kernelHTTPStatus() uint32

//go:wasmimport extism:host/env http_headers
func kernelHTTPHeaders() uint64

//go:wasmimport extism:host/user tool_exec
func userToolExec(off uint64) uint64

//go:wasmimport extism:host/user tool_emit
func userToolEmit(off uint64) uint64

//go:wasmimport extism:host/user tool_recv
func userToolRecv(off uint64) uint64

//go:wasmimport extism:host/user tool_call
func userToolCall(off uint64) uint64

// put copies b into a new block of the kernel's memory, eight bytes a call.
func put(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	n := uint64(len(b))
	off := kernelAlloc(n)
	i := uint64(0)
	for ; i+8 <= n; i += 8 {
		kernelStoreU64(off+i, binary.LittleEndian.Uint64(b[i:]))
	}
	for ; i < n; i++ {
		kernelStoreU8(off+i, uint32(b[i]))
	}
	return off
}

// take copies the block at off out of the kernel's memory and frees it.
func take(off uint64) []byte {
	if off == 0 {
		return nil
	}
	n := kernelLength(off)
	b := make([]byte, n)
	i := uint64(0)
	for ; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], kernelLoadU64(off+i))
	}
	for ; i < n; i++ {
		b[i] = byte(kernelLoadU8(off + i))
	}
	kernelFree(off)
	return b
}

func setError(message string) {
	if message == "" {
		message = "error without a message"
	}
	kernelErrorSet(put([]byte(message)))
}

func configGet(key string) (string, bool) {
	k := put([]byte(key))
	v := kernelConfigGet(k)
	kernelFree(k)
	return string(take(v)), v != 0
}

func varGet(key string) []byte {
	k := put([]byte(key))
	v := kernelVarGet(k)
	kernelFree(k)
	return take(v)
}

func varSet(key string, value []byte) {
	k := put([]byte(key))
	v := put(value)
	kernelVarSet(k, v)
	kernelFree(k)
	if v != 0 {
		kernelFree(v)
	}
}

func logLine(level Level, message string) {
	off := put([]byte(message))
	switch level {
	case LevelDebug:
		kernelLogDebug(off)
	case LevelInfo:
		kernelLogInfo(off)
	case LevelWarn:
		kernelLogWarn(off)
	default:
		kernelLogError(off)
	}
	if off != 0 {
		kernelFree(off)
	}
}

// httpRequest relies on this: a host that got no answer sets status 0 and
// leaves its reason as the body. (A stock Extism host traps instead.)
func httpRequest(r *HTTPRequest) (*HTTPResponse, error) {
	req, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	q, body := put(req), put(r.Body)
	out := take(kernelHTTPRequest(q, body))
	kernelFree(q)
	if body != 0 {
		kernelFree(body)
	}
	res := &HTTPResponse{Status: int(kernelHTTPStatus()), Body: out}
	if res.Status == 0 {
		return nil, errors.New("http request: " + string(out))
	}
	if h := take(kernelHTTPHeaders()); len(h) > 0 {
		if err := json.Unmarshal(h, &res.Headers); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func user(fn func(uint64) uint64, in []byte) []byte {
	q := put(in)
	out := take(fn(q))
	if q != 0 {
		kernelFree(q)
	}
	return out
}

func toolExec(in []byte) []byte { return user(func(q uint64) uint64 { return userToolExec(q) }, in) }
func toolEmit(in []byte) []byte { return user(func(q uint64) uint64 { return userToolEmit(q) }, in) }
func toolRecv(in []byte) []byte { return user(func(q uint64) uint64 { return userToolRecv(q) }, in) }
func toolCall(in []byte) []byte { return user(func(q uint64) uint64 { return userToolCall(q) }, in) }
