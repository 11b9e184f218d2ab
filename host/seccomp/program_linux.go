package seccomp

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter is a classic BPF program that the kernel runs at each system call
// of a confined tool. It answers most by number alone, which the kernel
// remembers in a bitmap, so that calls that are allowed whatever their
// arguments are cost nothing. What depends on memory or on a path goes to the
// supervisor (Listener).

// verdict is what the filter does with a system call.
type verdict uint32

const (
	allow  verdict = unix.SECCOMP_RET_ALLOW
	notify verdict = unix.SECCOMP_RET_USER_NOTIF
	// refuse is for what a tool has no business with. absent is for what
	// programs try first and do without.
	refuse verdict = unix.SECCOMP_RET_ERRNO | verdict(unix.EPERM)
	absent verdict = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOSYS)
)

// rule is what becomes of one system call: the verdict of the first test that
// holds, otherwise otherwise.
type rule struct {
	nr        uint32
	tests     []test
	otherwise verdict
}

// test looks at the low half of an argument, which is all that the kernel reads
// of an int: a filter that compared both halves could be passed with a value
// that only the filter finds different.
type test struct {
	arg  int
	op   op
	with uint32
	then verdict
	// but are further tests where this one holds; then is for when none of them
	// does.
	but []test
}

type op int

const (
	equal op = iota
	unequal
	anyBit   // of with is set
	sockType // is with, but for the flags that a socket's type has
	ioctlOf  // is a number of an ioctl of the type with
)

func always(v verdict, nrs ...uint32) (rules []rule) {
	for _, nr := range nrs {
		rules = append(rules, rule{nr: nr, otherwise: v})
	}
	return rules
}

// self allows a call whose first argument, a process or thread, is 0, and asks
// the supervisor about every other.
func self(nrs ...uint32) (rules []rule) {
	for _, nr := range nrs {
		rules = append(rules, rule{nr: nr, tests: []test{{arg: 0, op: equal, with: 0, then: allow}}, otherwise: notify})
	}
	return rules
}

// newest is the last system call that this filter was written for. What a
// later kernel adds is absent, since nobody has judged it.
const newest = unix.SYS_RSEQ_SLICE_YIELD

// program is the filter for the rules, which have one entry for a number, of the
// architecture audit.
func program(audit uint32, rules []rule) []unix.SockFilter {
	rules = slices.Clone(rules)
	slices.SortFunc(rules, func(a, b rule) int { return int(a.nr) - int(b.nr) })

	// The rule of every number, from 0 up; those beside each other with the same
	// verdict are one span.
	type span struct {
		from uint32
		rule rule
	}
	free, unknown := rule{otherwise: allow}, rule{otherwise: absent}
	spans := []span{{0, free}}
	from := func(nr uint32, r rule) {
		last := &spans[len(spans)-1]
		switch {
		case len(r.tests)+len(last.rule.tests) == 0 && last.rule.otherwise == r.otherwise:
		case last.from == nr:
			last.rule = r
		default:
			spans = append(spans, span{nr, r})
		}
	}
	next := uint32(0)
	for _, r := range rules {
		if r.nr > next {
			from(next, free)
		}
		from(r.nr, r)
		next = r.nr + 1
	}
	if next <= newest {
		from(next, free)
	}
	from(newest+1, unknown)

	a := assembler{shared: map[string]int{}}
	// A binary search, so that the kernel's look at the filter for each number
	// there is, when it is installed, stays short.
	var search func(spans []span) int
	search = func(spans []span) int {
		if len(spans) == 1 {
			return a.leaf(spans[0].rule)
		}
		half := len(spans) / 2
		upper := search(spans[half:])
		return a.branch(unix.BPF_JGE, spans[half].from, upper, search(spans[:half]))
	}
	// Another architecture's numbers mean other calls.
	other := a.leaf(unknown)
	search(spans)
	a.branch(unix.BPF_JEQ, audit, a.load(atNr), other)
	a.load(atArch)
	slices.Reverse(a.back)
	return a.back
}

// Offsets in struct seccomp_data.
const (
	atNr   = 0
	atArch = 4
	atArgs = 16
)

// assembler puts a program together from its end, for jumps only lead on: what
// one leads to is there already. A place is an index into back. Installing takes
// as long as the program is, so what is the same is there once.
type assembler struct {
	back   []unix.SockFilter
	shared map[string]int
}

func (a *assembler) add(c unix.SockFilter) int {
	a.back = append(a.back, c)
	return len(a.back) - 1
}

func (a *assembler) load(offset uint32) int {
	return a.add(unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

// branch goes on at yes where the test of with holds, otherwise at no.
func (a *assembler) branch(test uint16, with uint32, yes, no int) int {
	yes, no = a.near(yes), a.near(no)
	here := len(a.back)
	return a.add(unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, K: with, Jt: uint8(here - yes - 1), Jf: uint8(here - no - 1)})
}

// near is to, or a jump there, so that a branch reaches it: its offsets are
// bytes. The next instruction may be another such jump.
func (a *assembler) near(to int) int {
	if len(a.back)-to-1 < 255 {
		return to
	}
	return a.add(unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(a.back) - to - 1)})
}

// leaf is where r is carried out.
func (a *assembler) leaf(r rule) int {
	key := fmt.Sprint(r.tests, r.otherwise)
	at, done := a.shared[key]
	if done {
		return at
	}
	if len(r.tests) == 0 {
		at = a.add(unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(r.otherwise)})
	} else {
		t, rest := r.tests[0], rule{tests: r.tests[1:], otherwise: r.otherwise}
		no := a.leaf(rest)
		yes := a.leaf(rule{tests: t.but, otherwise: t.then})
		switch t.op {
		case equal:
			a.branch(unix.BPF_JEQ, t.with, yes, no)
		case unequal:
			a.branch(unix.BPF_JEQ, t.with, no, yes)
		case anyBit:
			a.branch(unix.BPF_JSET, t.with, yes, no)
		case sockType:
			a.branch(unix.BPF_JEQ, t.with, yes, no)
			a.add(unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf})
		case ioctlOf:
			a.branch(unix.BPF_JEQ, t.with, yes, no)
			a.add(unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xff})
			a.add(unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 8})
		}
		at = a.load(atArgs + 8*uint32(t.arg))
	}
	a.shared[key] = at
	return at
}

// install has the calling thread pass through code for good.
func install(code []unix.SockFilter) (listener int, err error) {
	prog := sockProgram(code)
	for _, flags := range []uintptr{
		// Without the second a signal interrupts a call that waits, which runs
		// again when the program goes on. Linux 5.19.
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
	} {
		r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
		if errno == 0 {
			// The other side runs at once, on the same core. Linux 6.6.
			unix.Syscall(unix.SYS_IOCTL, r, notifSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
			return int(r), nil
		}
		err = errno
		if errno != unix.EINVAL {
			break
		}
	}
	return -1, err
}

func sockProgram(code []unix.SockFilter) unix.SockFprog {
	return unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
}
