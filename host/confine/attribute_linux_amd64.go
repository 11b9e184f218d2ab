package confine

import "golang.org/x/sys/unix"

// archAttributes are the calls of a time when paths were not relative to
// descriptors.
var archAttributes = map[uint32]*attributeCallKind{
	unix.SYS_CHMOD:     {flags: -1, follow: true, change: changeMode},
	unix.SYS_CHOWN:     {flags: -1, follow: true, change: changeOwner},
	unix.SYS_LCHOWN:    {flags: -1, change: changeOwner},
	unix.SYS_UTIME:     {flags: -1, follow: true, change: changeTimes(seconds)},
	unix.SYS_UTIMES:    {flags: -1, follow: true, change: changeTimes(microseconds)},
	unix.SYS_FUTIMESAT: {at: true, flags: -1, follow: true, change: changeTimes(microseconds)},
}
