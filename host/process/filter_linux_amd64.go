package process

import "golang.org/x/sys/unix"

// filterArch is what amd64 has beside the common calls: those of a time when
// paths were not relative to descriptors. The numbers of x32 have bit 30 set
// and are so beyond newest.
var filterArch = archRules{
	audit: unix.AUDIT_ARCH_X86_64,
	attributes: map[uint32]*attributeCallKind{
		unix.SYS_CHMOD:     {flags: -1, follow: true, change: changeMode},
		unix.SYS_CHOWN:     {flags: -1, follow: true, change: changeOwner},
		unix.SYS_LCHOWN:    {flags: -1, change: changeOwner},
		unix.SYS_UTIME:     {flags: -1, follow: true, change: changeTimes(seconds)},
		unix.SYS_UTIMES:    {flags: -1, follow: true, change: changeTimes(microseconds)},
		unix.SYS_FUTIMESAT: {at: true, flags: -1, follow: true, change: changeTimes(microseconds)},
	},
	refused: []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_CREATE_MODULE},
}
