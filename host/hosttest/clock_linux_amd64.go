package hosttest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
)

// Clock is the time of day of one process: that of the machine, and what was set.
type Clock struct {
	t   testing.TB
	pid int
	at  uint64 // the address of the seconds that are added, in the process
}

// StartProcessWithClock starts a daemon as StartProcess does, whose time of day a test
// can set while it runs. Linux has no namespace for that, and a static program loads no
// library that could be replaced: instead, the kernel's own clock function, which is mapped
// into each process, is replaced. Processes of the daemon, and files, have the machine's
// time.
func StartProcessWithClock(t testing.TB, c config.Config) (*Process, *Clock) {
	t.Helper()
	clock := &Clock{t: t}
	return startProcess(t, c, clock.start), clock
}

// Set makes the time of day differ from the machine's by whole seconds.
func (c *Clock) Set(by time.Duration) {
	c.t.Helper()
	if err := c.write(c.at, binary.LittleEndian.AppendUint64(nil, uint64(by/time.Second))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Clock) write(at uint64, b []byte) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, int64(at))
	return err
}

// clockGettime asks the kernel, and adds the number behind it to the seconds of
// CLOCK_REALTIME.
var clockGettime = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 10, // jne ret
	0x48, 0x8b, 0x0d, 6, 0, 0, 0, // mov rcx, [rip+6]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3,       // ret
	0x90, 0x90, // to a multiple of 8
	0, 0, 0, 0, 0, 0, 0, 0,
}

// start starts cmd, and replaces the function before the program's first instruction.
func (c *Clock) start(cmd *exec.Cmd) error {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.pid = cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(c.pid, &status, 0, nil); err != nil || !status.Stopped() {
		return fmt.Errorf("wait for the program: %v, status %#x", err, status)
	}
	if err := c.replace(); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	return syscall.PtraceDetach(c.pid)
}

func (c *Clock) replace() error {
	base, size, err := vdso(c.pid)
	if err != nil {
		return err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	image := make([]byte, size)
	if _, err := mem.ReadAt(image, int64(base)); err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			at := base + s.Value
			c.at = at + uint64(len(clockGettime)) - 8
			return c.write(at, clockGettime)
		}
	}
	return errors.New("the kernel's functions have no clock_gettime")
}

// vdso returns where the kernel's functions are in a process.
func vdso(pid int) (base, size uint64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(line, "[vdso]\n") {
			var end uint64
			_, err := fmt.Sscanf(line, "%x-%x", &base, &end)
			return base, end - base, err
		}
	}
	return 0, 0, errors.New("the process has none of the kernel's functions")
}
