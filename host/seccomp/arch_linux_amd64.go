package seccomp

import "golang.org/x/sys/unix"

// filterArch is what amd64 has beside the common calls: those of a time when
// paths were not relative to descriptors. The numbers of x32 have bit 30 set
// and are so beyond newest.
var filterArch = archRules{
	audit:      unix.AUDIT_ARCH_X86_64,
	attributes: []uint32{unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT},
	refused:    []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_CREATE_MODULE},
	creating: []rule{
		{nr: unix.SYS_OPEN, tests: creates(1, 2), otherwise: allow},
		{nr: unix.SYS_CREAT, tests: creates(-1, 1), otherwise: allow},
		{nr: unix.SYS_MKNOD, tests: creates(-1, 1), otherwise: allow},
	},
	modes: []rule{{nr: unix.SYS_CHMOD, tests: modes(1), otherwise: allow}},
}
