// Kitchen is a guest that does a little of everything that tests need.
// Commands come as the first line of the input: "verb arg…".
package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

//go:wasmimport extism:host/env input_length
func inputLength() uint64

//go:wasmimport extism:host/env input_load_u8
func inputLoadU8(off uint64) uint32

//go:wasmimport extism:host/env input_load_u64
func inputLoadU64(off uint64) uint64

//go:wasmimport extism:host/env alloc
func alloc(n uint64) uint64

//go:wasmimport extism:host/env store_u8
func storeU8(off uint64, v uint32)

//go:wasmimport extism:host/env store_u64
func storeU64(off uint64, v uint64)

//go:wasmimport extism:host/env output_set
func outputSet(off, n uint64)

//go:wasmimport extism:host/env error_set
func errorSet(off uint64)

//go:wasmimport extism:host/user tool_read
func toolRead(dst unsafe.Pointer, off uint64, n uint32) uint32

//go:wasmimport extism:host/user tool_write
func toolWrite(src unsafe.Pointer, n uint32)

func input() []byte {
	n := inputLength()
	b := make([]byte, n)
	i := uint64(0)
	for ; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], inputLoadU64(i))
	}
	for ; i < n; i++ {
		b[i] = byte(inputLoadU8(i))
	}
	return b
}

func put(b []byte) uint64 {
	n := uint64(len(b))
	p := alloc(n)
	i := uint64(0)
	for ; i+8 <= n; i += 8 {
		storeU64(p+i, binary.LittleEndian.Uint64(b[i:]))
	}
	for ; i < n; i++ {
		storeU8(p+i, uint32(b[i]))
	}
	return p
}

func output(b []byte) { outputSet(put(b), uint64(len(b))) }

var (
	calls int
	kept  [][]byte
	env   = map[string]string{}
	once  = func() (b [8]byte) { rand.Read(b[:]); return }()
	seed  = once
)

type request struct {
	Tool string   `json:"tool"`
	Args []string `json:"args"`
	Cwd  string   `json:"cwd"`
}

type decision struct {
	Allow  bool   `json:"allow"`
	Reason string `json:"reason"`
	N      int    `json:"n"`
}

// What encoding/json learns of a type when it first sees it is kept, and so is
// memory that the collector found free: done here, both are part of the image
// that calls begin from.
func init() {
	for range 3 {
		warmJSON()
	}
	runtime.GC()
	warmJSON()
	warmJSON()
}

func warmJSON() {
	var r request
	json.Unmarshal([]byte(`{"tool":"t","args":["a","b"],"cwd":"/"}`), &r)
	json.Marshal(decision{Reason: r.Tool})
}

// check is what a policy does: JSON in, JSON out.
//
//go:wasmexport check
func check() int32 {
	var r request
	if err := json.Unmarshal(input(), &r); err != nil {
		return 1
	}
	calls++
	d := decision{Allow: true, N: calls}
	for _, a := range r.Args {
		if a == "--force" {
			d.Allow, d.Reason = false, "force push"
		}
	}
	b, _ := json.Marshal(d)
	output(b)
	return 0
}

// bulk returns its input, through the bulk functions.
//
//go:wasmexport bulk
func bulk() int32 {
	b := make([]byte, inputLength())
	if len(b) > 0 {
		b = b[:toolRead(unsafe.Pointer(&b[0]), 0, uint32(len(b)))]
		toolWrite(unsafe.Pointer(&b[0]), uint32(len(b)))
	}
	return 0
}

//go:wasmexport echo
func echo() int32 { output(input()); return 0 }

//go:wasmexport resumed
func resumed() { seed = sha256Sum() }

func sha256Sum() (b [8]byte) { rand.Read(b[:]); return }

// run does what its input says.
//
//go:wasmexport run
func run() int32 {
	f := strings.Fields(string(input()))
	n := 0
	if len(f) > 1 {
		n, _ = strconv.Atoi(f[1])
	}
	switch f[0] {
	case "calls":
		calls++
		output([]byte(strconv.Itoa(calls)))
	case "keep": // n MiB of memory, all touched
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		output([]byte(strconv.Itoa(len(kept))))
	case "kept":
		output([]byte(strconv.Itoa(len(kept))))
	case "loop":
		for i := 0; ; i++ {
			calls += i
		}
	case "panic":
		calls++
		panic("told to")
	case "exit":
		calls++
		os.Exit(n)
	case "error":
		calls++
		errorSet(put([]byte("no such branch")))
		return 1
	case "code":
		return int32(n)
	case "sleep":
		time.Sleep(time.Duration(n) * time.Millisecond)
		output([]byte("slept"))
	case "recurse":
		output([]byte(strconv.Itoa(deep(n))))
	case "setenv":
		os.Setenv("LEFT", "behind")
		env["LEFT"] = "behind"
	case "getenv":
		output([]byte(os.Getenv("LEFT") + env["LEFT"]))
	case "once":
		output([]byte(hex.EncodeToString(once[:])))
	case "seed":
		output([]byte(hex.EncodeToString(seed[:])))
	case "now":
		output([]byte(strconv.FormatInt(time.Now().UnixNano(), 10)))
	case "sha":
		b := make([]byte, 64<<10)
		for range n {
			s := sha256.Sum256(b)
			copy(b, s[:])
		}
		output([]byte(hex.EncodeToString(b[:8])))
	case "rx":
		re := regexp.MustCompile(`(a|b)*c[0-9]+(foo|bar)$`)
		s := strings.Repeat("ab", 20) + "c123foo"
		k := 0
		for range n {
			if re.MatchString(s) {
				k++
			}
		}
		output([]byte(strconv.Itoa(k)))
	case "js":
		type t struct {
			A int               `json:"a"`
			B []string          `json:"b"`
			C map[string]string `json:"c"`
		}
		src := []byte(`{"a":12345,"b":["x","yy","zzz","the quick brown fox"],"c":{"k":"v","k2":"v2"}}`)
		l := 0
		for range n {
			var v t
			json.Unmarshal(src, &v)
			b, _ := json.Marshal(v)
			l += len(b)
		}
		output([]byte(strconv.Itoa(l)))
	case "srt":
		x := uint32(1)
		a := make([]int, 20000)
		for range n {
			for i := range a {
				x = x*1664525 + 1013904223
				a[i] = int(x)
			}
			sort.Ints(a)
		}
		output([]byte(strconv.Itoa(a[0])))
	case "float":
		v := 0.5
		for i := range n {
			v = math.Sin(v) + float64(i&7)
		}
		output([]byte(fmt.Sprint(v)))
	case "gc":
		runtime.GC()
	case "print":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
	case "ls":
		es, err := os.ReadDir(f[1])
		output([]byte(fmt.Sprint(len(es), err)))
	default:
		errorSet(put([]byte("unknown verb " + f[0])))
	}
	return 0
}

func deep(n int) int {
	if n == 0 {
		return 0
	}
	return deep(n-1) + 1
}

func main() {}
