package guest

import (
	"encoding/binary"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// wasi is WASI preview 1 for modules that see no files: clocks, randomness,
// and three descriptors that lead nowhere. It is ours, and not wazero's,
// because what a guest did to it must be undone for the next call, and
// because a guest that waits must stop waiting when its call ends. A command,
// or a module with files, gets wazero's descriptors, and the rest of ours.
type wasi struct {
	closed  [3]bool
	changed bool // a descriptor was closed or moved
	exited  bool // proc_exit was called
}

// Error numbers of WASI.
const (
	eOK    = 0
	eBADF  = 8
	eFAULT = 21
	eINVAL = 28
	eNOSYS = 52
	eSPIPE = 70
)

// wasiFuncs lists all functions of preview 1.
func wasiFuncs() []hostFunc {
	// Parameters as letters: i is i32, l is i64. All answer an i32 but
	// proc_exit.
	def := func(name, params string, fn func(c *call, s []uint64) uint64) hostFunc {
		p := make(types, len(params))
		for i, l := range params {
			p[i] = i32
			if l == 'l' {
				p[i] = i64
			}
		}
		return hostFunc{wasiModule, name, always, p, types{i32}, func(c *call, s []uint64) { s[0] = fn(c, s) }}
	}
	badf := func(*call, []uint64) uint64 { return eBADF }
	stdio := func(answer uint64) func(c *call, s []uint64) uint64 {
		return func(c *call, s []uint64) uint64 {
			if !c.open(s[0]) {
				return eBADF
			}
			return answer
		}
	}
	exit := hostFunc{wasiModule, "proc_exit", always, types{i32}, types{}, func(c *call, s []uint64) {
		c.inst.wasi.exited = true
		panic(sys.NewExitError(uint32(s[0])))
	}}
	empty := func(c *call, s []uint64) uint64 { // sizes of nothing
		if !c.put32(s[0], 0) || !c.put32(s[1], 0) {
			return eFAULT
		}
		return eOK
	}
	return []hostFunc{
		exit,
		def("args_get", "ii", func(*call, []uint64) uint64 { return eOK }),
		def("args_sizes_get", "ii", empty),
		def("environ_get", "ii", func(*call, []uint64) uint64 { return eOK }),
		def("environ_sizes_get", "ii", empty),
		def("clock_res_get", "ii", clockRes),
		def("clock_time_get", "ili", clockTime),
		def("random_get", "ii", randomGet),
		def("poll_oneoff", "iiii", pollOneoff),
		def("sched_yield", "", schedYield),
		def("proc_raise", "i", func(*call, []uint64) uint64 { return eNOSYS }),

		def("fd_close", "i", func(c *call, s []uint64) uint64 {
			if !c.open(s[0]) {
				return eBADF
			}
			c.inst.wasi.closed[uint32(s[0])], c.inst.wasi.changed = true, true
			return eOK
		}),
		def("fd_renumber", "ii", func(c *call, s []uint64) uint64 {
			if !c.open(s[0]) || uint32(s[1]) > 2 {
				return eBADF
			}
			w := &c.inst.wasi
			w.closed[uint32(s[0])], w.closed[uint32(s[1])], w.changed = true, false, true
			return eOK
		}),
		def("fd_fdstat_get", "ii", fdstat),
		def("fd_filestat_get", "ii", filestat),
		def("fd_write", "iiii", fdWrite),
		def("fd_read", "iiii", fdRead),
		def("fd_fdstat_set_flags", "ii", stdio(eOK)),
		def("fd_fdstat_set_rights", "ill", stdio(eNOSYS)),
		def("fd_advise", "illi", stdio(eSPIPE)),
		def("fd_allocate", "ill", stdio(eSPIPE)),
		def("fd_datasync", "i", stdio(eOK)),
		def("fd_sync", "i", stdio(eOK)),
		def("fd_filestat_set_size", "il", stdio(eINVAL)),
		def("fd_filestat_set_times", "illi", stdio(eINVAL)),
		def("fd_pread", "iiili", stdio(eSPIPE)),
		def("fd_pwrite", "iiili", stdio(eSPIPE)),
		def("fd_seek", "ilii", stdio(eSPIPE)),
		def("fd_tell", "ii", stdio(eSPIPE)),
		def("fd_prestat_get", "ii", badf),
		def("fd_prestat_dir_name", "iii", badf),
		def("fd_readdir", "iiili", badf),
		def("path_create_directory", "iii", badf),
		def("path_filestat_get", "iiiii", badf),
		def("path_filestat_set_times", "iiiilli", badf),
		def("path_link", "iiiiiii", badf),
		def("path_open", "iiiiillii", badf),
		def("path_readlink", "iiiiii", badf),
		def("path_remove_directory", "iii", badf),
		def("path_rename", "iiiiii", badf),
		def("path_symlink", "iiiii", badf),
		def("path_unlink_file", "iii", badf),
		def("adapter_close_badfd", "i", badf),
		def("adapter_open_badfd", "i", badf),
		def("sock_accept", "iii", badf),
		def("sock_recv", "iiiiii", badf),
		def("sock_send", "iiiii", badf),
		def("sock_shutdown", "ii", badf),
	}
}

// noDescriptors are the functions that know no descriptors, or only whether one
// can be read: they are ours for every module. wazero's poll_oneoff knows no
// time of day to wait for, and says that an input is there which is not.
var noDescriptors = []string{"adapter_close_badfd", "adapter_open_badfd", "clock_res_get", "clock_time_get", "poll_oneoff", "random_get", "sched_yield"}

// exportCommandWASI adds the WASI of a command, or of a module with files.
func exportCommandWASI(b wazero.HostModuleBuilder, ours []hostFunc) {
	wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(b)
	for _, f := range ours {
		if f.module == wasiModule && slices.Contains(noDescriptors, f.name) {
			f.export(b)
		}
	}
}

func schedYield(*call, []uint64) uint64 {
	runtime.Gosched()
	return eOK
}

// open reports whether fd is one of the three descriptors.
func (c *call) open(fd uint64) bool {
	return uint32(fd) <= 2 && !c.inst.wasi.closed[uint32(fd)]
}

// view answers n bytes of the guest's memory, or nil.
func (c *call) view(ptr, n uint64) []byte {
	mem := memory(c.guest)
	if mem == nil {
		return nil
	}
	p, ok := mem.Read(uint32(ptr), uint32(n))
	if !ok {
		return nil
	}
	if p == nil {
		p = []byte{}
	}
	return p
}

func (c *call) put32(ptr uint64, v uint32) bool {
	p := c.view(ptr, 4)
	if p == nil {
		return false
	}
	binary.LittleEndian.PutUint32(p, v)
	return true
}

func (c *call) put64(ptr uint64, v uint64) bool {
	p := c.view(ptr, 8)
	if p == nil {
		return false
	}
	binary.LittleEndian.PutUint64(p, v)
	return true
}

// now answers a clock: 0 is the time of day, 1 never goes back.
func (c *call) now(clock uint64) (uint64, bool) {
	switch uint32(clock) {
	case 0:
		return uint64(time.Now().UnixNano()), true
	case 1:
		return uint64(time.Since(c.inst.m.e.started)) + 1, true
	}
	return 0, false
}

func clockRes(c *call, s []uint64) uint64 {
	if uint32(s[0]) > 1 {
		return eINVAL
	}
	if !c.put64(s[1], 1000) {
		return eFAULT
	}
	return eOK
}

func clockTime(c *call, s []uint64) uint64 {
	t, ok := c.now(s[0])
	if !ok {
		return eINVAL
	}
	if !c.put64(s[2], t) {
		return eFAULT
	}
	return eOK
}

func randomGet(c *call, s []uint64) uint64 {
	p := c.view(s[0], s[1])
	if p == nil {
		return eFAULT
	}
	for len(p) > 0 { // a gigabyte of it takes longer than an abort may
		n := min(len(p), 64<<10)
		c.charge(uint64(n) * 16)
		c.checkCanceled()
		c.randomness().Read(p[:n])
		p = p[n:]
	}
	return eOK
}

func fdstat(c *call, s []uint64) uint64 {
	if !c.open(s[0]) {
		return eBADF
	}
	p := c.view(s[1], 24)
	if p == nil {
		return eFAULT
	}
	clear(p)
	p[0] = 2 // a character device
	rights := uint64(1 << 1)
	if uint32(s[0]) > 0 {
		rights = 1 << 6
	}
	binary.LittleEndian.PutUint64(p[8:], rights)
	return eOK
}

func filestat(c *call, s []uint64) uint64 {
	if !c.open(s[0]) {
		return eBADF
	}
	p := c.view(s[1], 64)
	if p == nil {
		return eFAULT
	}
	clear(p)
	p[16] = 2
	return eOK
}

// fdWrite keeps the beginning of stderr, for the message of a trap, and drops
// the rest.
func fdWrite(c *call, s []uint64) uint64 {
	if !c.open(s[0]) || uint32(s[0]) == 0 {
		return eBADF
	}
	n := uint32(s[2])
	iovs := c.view(s[1], uint64(n)*8)
	if iovs == nil || uint64(n)*8 > 1<<31 {
		return eFAULT
	}
	var total uint32
	for i := range n {
		ptr := binary.LittleEndian.Uint32(iovs[i*8:])
		size := binary.LittleEndian.Uint32(iovs[i*8+4:])
		p := c.view(uint64(ptr), uint64(size))
		if p == nil {
			return eFAULT
		}
		switch {
		case uint32(s[0]) == 2:
			c.inst.said.Write(p)
		case !c.printed && size > 0:
			c.printed = true
			c.logLine(slog.LevelWarn, []byte("the module prints to its standard output, which nobody reads; answer it as stdout, or send it with tool_emit"))
		}
		total += size
	}
	c.charge(uint64(n) * 16)
	if !c.put32(s[3], total) {
		return eFAULT
	}
	return eOK
}

func fdRead(c *call, s []uint64) uint64 {
	if !c.open(s[0]) || uint32(s[0]) != 0 {
		return eBADF
	}
	if !c.put32(s[3], 0) {
		return eFAULT
	}
	return eOK
}

// pollOneoff waits for the earliest of some clocks, or for input; any other
// descriptor is always ready. What a clock waits for may be a time of day, or
// a time from now on.
func pollOneoff(c *call, s []uint64) uint64 {
	const (
		subSize, eventSize = 48, 32
		mostSubs           = 4096
	)
	n := uint32(s[2])
	if n == 0 || n > mostSubs {
		return eINVAL
	}
	c.charge(uint64(n) * 16)
	subs := c.view(s[0], uint64(n)*subSize)
	events := c.view(s[1], uint64(n)*eventSize)
	if subs == nil || events == nil {
		return eFAULT
	}
	evs := make([]pollEvent, 0, n)
	least, input := never, false
	for i := range n {
		e, ok := c.subscribe(subs[i*subSize:][:subSize])
		if !ok {
			return eINVAL
		}
		input = input || e.input
		least = min(least, e.wait)
		evs = append(evs, e)
	}
	ready := 0
	if input {
		ready = c.inst.stdin.await(least)
	} else {
		c.sleep(least)
	}
	count := uint32(0)
	for _, e := range evs {
		switch {
		case e.input && ready == 0, !e.input && e.wait > least:
			continue
		case !e.input && e.wait > 0 && ready != 0: // the input came first
			continue
		}
		p := events[count*eventSize:][:eventSize]
		clear(p)
		binary.LittleEndian.PutUint64(p, e.user)
		binary.LittleEndian.PutUint16(p[8:], e.errno)
		p[10] = e.kind
		switch {
		case e.input && ready == inputEnded:
			p[24] = 1 // hung up
		case e.input:
			binary.LittleEndian.PutUint64(p[16:], uint64(ready))
		}
		count++
	}
	if !c.put32(s[3], count) {
		return eFAULT
	}
	return eOK
}

// never is how long what only input ends may wait.
const never = time.Duration(1<<63 - 1)

// pollEvent is a subscription of poll_oneoff, and how long it waits for its event.
type pollEvent struct {
	user  uint64
	errno uint16
	kind  byte
	wait  time.Duration
	input bool // of standard input
}

// subscribe reads one subscription; ok: its kind is known.
func (c *call) subscribe(sub []byte) (e pollEvent, ok bool) {
	e = pollEvent{user: binary.LittleEndian.Uint64(sub), kind: sub[8]}
	switch e.kind {
	case 0:
		timeout := binary.LittleEndian.Uint64(sub[24:])
		now, ok := c.now(uint64(binary.LittleEndian.Uint32(sub[16:])))
		if !ok {
			e.errno = eINVAL
		} else if binary.LittleEndian.Uint16(sub[40:])&1 != 0 { // absolute
			if timeout > now {
				e.wait = time.Duration(min(timeout-now, 1<<62))
			}
		} else {
			e.wait = time.Duration(min(timeout, 1<<62))
		}
	case 1, 2:
		fd := binary.LittleEndian.Uint32(sub[16:])
		switch {
		case c.inst.m.wazeroWASI:
			e.input = fd == 0 && e.kind == 1 && c.inst.stdin != nil
		case !c.open(uint64(fd)):
			e.errno = eBADF
		}
		if e.input {
			e.wait = never
		}
	default:
		return e, false
	}
	return e, true
}
