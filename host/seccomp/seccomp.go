// Package seccomp installs the system call filter of confined runs on threads of
// this process, and hands on the calls that the filter asks about.
//
// It guarantees that a thread under Install, and all that it starts, makes no
// system call but those of the table in docs/security.md, for good; that a call
// which the filter asks about waits until its Listener has answered it, or its
// caller is killed; and that one which nobody has judged, of a later kernel or of
// another architecture, is absent (ENOSYS).
//
// It does not judge calls: what is answered to one that waits is up to the
// caller, and so is that the memory it reads of another process may change
// behind its back. A call that is let go on reads its arguments again.
//
// Callers are package confine, which answers, and package process, whose
// supervisors start what is confined. It is there on Linux only.
package seccomp
