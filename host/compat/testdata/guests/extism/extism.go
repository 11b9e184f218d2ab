// Package extism is the Extism interface as its own kits have it, of which guests
// of tests that know nothing of toold are made.
package extism

//go:wasmimport extism:host/env alloc
func alloc(n uint64) uint64

//go:wasmimport extism:host/env length
func length(at uint64) uint64

//go:wasmimport extism:host/env load_u8
func load(at uint64) uint32

//go:wasmimport extism:host/env store_u8
func store(at uint64, b uint32)

//go:wasmimport extism:host/env input_length
func inputLength() uint64

//go:wasmimport extism:host/env input_load_u8
func inputLoad(at uint64) uint32

//go:wasmimport extism:host/env output_set
func outputSet(at, n uint64)

//go:wasmimport extism:host/env error_set
func errorSet(at uint64)

//go:wasmimport extism:host/env http_request
func httpRequest(request, body uint64) uint64

//go:wasmimport extism:host/env http_status_code
func httpStatus() uint32

//go:wasmimport extism:host/user elicit
func elicit(at uint64) uint64

func keep(p []byte) uint64 {
	at := alloc(uint64(len(p)))
	for i, b := range p {
		store(at+uint64(i), uint32(b))
	}
	return at
}

func read(at uint64) []byte {
	p := make([]byte, length(at))
	for i := range p {
		p[i] = byte(load(at + uint64(i)))
	}
	return p
}

// Input is what the export was called with.
func Input() []byte {
	p := make([]byte, inputLength())
	for i := range p {
		p[i] = byte(inputLoad(uint64(i)))
	}
	return p
}

// Output answers p.
func Output(p []byte) int32 {
	outputSet(keep(p), uint64(len(p)))
	return 0
}

// Fail fails with text.
func Fail(text string) int32 {
	errorSet(keep([]byte(text)))
	return 1
}

// Get is a request as a kit makes it: it takes every answer for the server's.
func Get(url string) (status uint32, body []byte) {
	at := httpRequest(keep([]byte(`{"method":"GET","url":"`+url+`"}`)), 0)
	return httpStatus(), read(at)
}

// Elicit calls a function that only another host has.
func Elicit() { elicit(0) }
