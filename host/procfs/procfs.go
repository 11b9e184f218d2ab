// Package procfs reads what /proc tells of processes: who started them, what
// restricts them, in which namespace they are.
//
// An answer is true of the process that had the number when it was read. The
// package does not keep that number from becoming another's: whoever acts on an
// answer holds the process, as its parent does that has not reaped it, or checks
// afterwards that it is still who it was. A list of descendants may miss one
// that is started or adopted meanwhile.
//
// Callers are the supervisors of package process, its Runner, and package confine
// where it judges signals. It is there on Linux only.
package procfs
