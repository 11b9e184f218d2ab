package guest

import (
	"encoding/binary"
	"log/slog"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/host/guest/folder"
)

// wasi is an instance's state for WASI preview 1: its descriptors. wazero's
// implementation is not used, because a guest's changes must be undone for the next
// call, and because a guest that waits must stop waiting when its call ends.
type wasi struct {
	fds     []descriptor    // by number
	folders []folder.Folder // those of the Mounts
	files   int             // number of open files
	begun   bool            // it has a call's descriptors
	changed bool            // a descriptor was opened, closed or moved
	touched bool            // a file or a folder was used
	exited  bool            // proc_exit was called
}

// WASI's error numbers. Those for files are in package folder.
const (
	eOK          = 0
	eBADF        = 8
	eFAULT       = 21
	eILSEQ       = 25
	eINVAL       = 28
	eNAMETOOLONG = 37
	eNOSYS       = 52
	eNOTDIR      = 54
	eNOTSOCK     = 57
	eNOTSUP      = 58
	eSPIPE       = 70
)

// wasiFuncs lists all functions of preview 1.
func wasiFuncs() []hostFunc {
	// Parameters as letters: i is i32, l is i64. All functions return an i32, except
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
	// open makes a function that returns answer for an open descriptor, and eBADF for
	// others.
	open := func(answer uint64) func(c *call, s []uint64) uint64 {
		return func(c *call, s []uint64) uint64 {
			if c.descriptor(s[0]) == nil {
				return eBADF
			}
			return answer
		}
	}
	exit := hostFunc{wasiModule, "proc_exit", always, types{i32}, types{}, func(c *call, s []uint64) {
		c.inst.wasi.exited = true
		panic(sys.NewExitError(uint32(s[0])))
	}}
	list := func(of func(cmd *Command) []string) (sizes, get func(c *call, s []uint64) uint64) {
		all := func(c *call) []string {
			if c.inst.cmd == nil {
				return nil
			}
			return of(c.inst.cmd)
		}
		return func(c *call, s []uint64) uint64 { return c.putSizes(s, all(c)) }, func(c *call, s []uint64) uint64 { return c.putStrings(s, all(c)) }
	}
	argSizes, args := list(func(cmd *Command) []string { return cmd.Args })
	envSizes, env := list(func(cmd *Command) []string { return cmd.Env })
	fns := []hostFunc{
		exit,
		def("args_get", "ii", args),
		def("args_sizes_get", "ii", argSizes),
		def("environ_get", "ii", env),
		def("environ_sizes_get", "ii", envSizes),
		def("clock_res_get", "ii", clockRes),
		def("clock_time_get", "ili", clockTime),
		def("random_get", "ii", randomGet),
		def("poll_oneoff", "iiii", pollOneoff),
		def("sched_yield", "", schedYield),
		def("proc_raise", "i", func(*call, []uint64) uint64 { return eNOSYS }),

		def("fd_close", "i", func(c *call, s []uint64) uint64 {
			d := c.descriptor(s[0])
			if d == nil {
				return eBADF
			}
			c.inst.wasi.close(d)
			return eOK
		}),
		def("fd_renumber", "ii", func(c *call, s []uint64) uint64 {
			from, to := c.descriptor(s[0]), c.descriptor(s[1])
			if from == nil || to == nil {
				return eBADF
			}
			if from != to {
				c.inst.wasi.close(to)
				*to, *from = *from, descriptor{}
			}
			return eOK
		}),
		def("fd_fdstat_get", "ii", fdstat),
		def("fd_fdstat_set_flags", "ii", setFlags),
		def("fd_fdstat_set_rights", "ill", func(c *call, s []uint64) uint64 {
			if d := c.descriptor(s[0]); d == nil || d.file == nil {
				return eBADF
			}
			return eNOTSUP
		}),
		def("fd_filestat_get", "ii", filestat),
		def("fd_write", "iiii", fdWrite),
		def("fd_read", "iiii", fdRead),
		def("fd_pread", "iiili", fdPread),
		def("fd_pwrite", "iiili", fdPwrite),
		def("adapter_close_badfd", "i", func(*call, []uint64) uint64 { return eBADF }),
		def("adapter_open_badfd", "i", func(*call, []uint64) uint64 { return eBADF }),
		def("sock_accept", "iii", open(eNOTSOCK)),
		def("sock_recv", "iiiiii", open(eNOTSOCK)),
		def("sock_send", "iiiii", open(eNOTSOCK)),
		def("sock_shutdown", "ii", open(eNOTSOCK)),
	}
	for name, params := range map[string]string{
		"fd_advise": "illi", "fd_allocate": "ill", "fd_datasync": "i", "fd_sync": "i", "fd_filestat_set_size": "il", "fd_filestat_set_times": "illi",
		"fd_seek": "ilii", "fd_tell": "ii", "fd_prestat_get": "ii", "fd_prestat_dir_name": "iii", "fd_readdir": "iiili",
		"path_create_directory": "iii", "path_filestat_get": "iiiii", "path_filestat_set_times": "iiiilli", "path_link": "iiiiiii", "path_open": "iiiiillii",
		"path_readlink": "iiiiii", "path_remove_directory": "iii", "path_rename": "iiiiii", "path_symlink": "iiiii", "path_unlink_file": "iii",
	} {
		fns = append(fns, def(name, params, fileFuncs[name]))
	}
	return fns
}

// close closes a descriptor and frees its number.
func (w *wasi) close(d *descriptor) {
	if d.kind == opened {
		w.files--
	}
	d.close()
	w.changed = true
}

// putSizes writes the number of strings and their total size.
func (c *call) putSizes(s []uint64, all []string) uint64 {
	n := 0
	for _, e := range all {
		n += len(e) + 1
	}
	if !c.put32(s[0], uint32(len(all))) || !c.put32(s[1], uint32(n)) {
		return eFAULT
	}
	return eOK
}

// putStrings writes the addresses of the strings, and the strings.
func (c *call) putStrings(s []uint64, all []string) uint64 {
	at, text := s[0], s[1]
	for _, e := range all {
		p := c.view(text, uint64(len(e)+1))
		if p == nil || !c.put32(at, uint32(text)) {
			return eFAULT
		}
		p[copy(p, e)] = 0
		c.charge(uint64(len(p)))
		at, text = at+4, text+uint64(len(p))
	}
	return eOK
}

func schedYield(*call, []uint64) uint64 {
	runtime.Gosched()
	return eOK
}

// view returns n bytes of the guest's memory, or nil.
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

// now returns the time of a clock: 0 is the time of day, 1 is monotonic.
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
	if no := knownClock(s[0]); no != eOK {
		return no
	}
	if !c.put64(s[1], 1000) {
		return eFAULT
	}
	return eOK
}

// knownClock rejects all but the two clocks; it rejects process and thread clocks as
// other hosts do.
func knownClock(clock uint64) uint64 {
	switch uint32(clock) {
	case 0, 1:
		return eOK
	case 2, 3:
		return eBADF
	}
	return eINVAL
}

func clockTime(c *call, s []uint64) uint64 {
	if no := knownClock(s[0]); no != eOK {
		return no
	}
	t, _ := c.now(s[0])
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
	for len(p) > 0 { // a gigabyte at once would delay an abort for too long
		n := min(len(p), 64<<10)
		c.charge(uint64(n) * 16)
		c.checkCanceled()
		c.randomness().Read(p[:n])
		p = p[n:]
	}
	return eOK
}

// stderr keeps the beginning of the output, for the message of a trap.
func (in *instance) stderr(p []byte) (int, error) {
	in.said.Write(p)
	if in.cmd != nil {
		return output{&in.c, in.cmd.Stderr}.Write(p)
	}
	return len(p), nil
}

// stdout discards output, except that of a command. It logs a warning on the first
// write.
func (in *instance) stdout(p []byte) (int, error) {
	if in.cmd != nil {
		return output{&in.c, in.cmd.Stdout}.Write(p)
	}
	if c := &in.c; !c.printed {
		c.printed = true
		c.logLine(slog.LevelWarn, []byte("the module prints to its standard output, which nobody reads; answer it as stdout, or send it with tool_emit"))
	}
	return len(p), nil
}

// pollOneoff waits for the earliest of several clocks, or for input; any other
// descriptor is always ready. A clock's time may be absolute or relative.
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
		default:
			binary.LittleEndian.PutUint64(p[16:], e.bytes)
		}
		count++
	}
	if !c.put32(s[3], count) {
		return eFAULT
	}
	return eOK
}

// never is the wait for an event that only input can end.
const never = time.Duration(1<<63 - 1)

// pollEvent is a subscription of poll_oneoff, and how long it waits for its event.
type pollEvent struct {
	user  uint64
	errno uint16
	kind  byte
	wait  time.Duration
	input bool   // on standard input
	bytes uint64 // available, at least
}

// subscribe reads one subscription. It reports whether its kind is known.
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
		d := c.descriptor(uint64(binary.LittleEndian.Uint32(sub[16:])))
		switch {
		case d == nil:
			e.errno = eBADF
		case d.kind == standardInput && e.kind == 1:
			e.input = c.inst.stdin != nil
		case d.kind == opened && e.kind == 1 && !d.file.Dir:
			if st, err := d.file.Stat(); err == nil {
				e.bytes = uint64(max(st.Size()-d.at, 0))
			}
		default:
			e.bytes = 1
		}
		if e.input {
			e.wait = never
		}
	default:
		return e, false
	}
	return e, true
}
