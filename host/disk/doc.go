// Package disk reads what tools are made of: the files in tools.d and the restricted
// folder, and the programs of the host with the interpreters of those that are scripts.
//
// The package promises:
//
//   - A Disk reads no file outside of its two folders, even through links. A file that
//     exists and cannot be read is never treated as absent.
//   - Of every file that was looked at there is a Stamp. While it is the same, the file
//     is the same, and so is a script with all its interpreters (Program.Changed).
//   - A script counts as startable only if the interpreters that the kernel would start
//     are known, and Guard refuses it if a call, or a user other than the owner, could
//     replace one of them.
//   - RemoveTree removes a folder that a call could write, whatever the call left in it.
//
// It does not promise that several files are read at one moment: Same and Current
// report whether they were. It does not parse definitions and executes nothing. The
// catalog of tools calls it, and so does the execution of binaries for the folders of
// calls.
package disk
