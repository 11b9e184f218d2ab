// Package tools turns a folder, tools.d, into the tools that calls run with.
//
// A tool is a folder tools.d/<name> with a tool.json, a module or a policy in
// it (docs/tools.md is the reference). A Catalog reads such folders at start,
// on the first request for a name it does not know, and when they change, and
// makes of each an immutable generation: a Tool with its definition, its
// policies and what executes it. A call pins the generation with Acquire and
// runs on it to its end; a new version is loaded beside the old one and takes
// its place in one step.
//
// What is promised:
//
//   - A generation is whole: policy, schema, definition and handler of one
//     Tool were on disk together.
//   - A version of which any part fails to load never replaces one that
//     works; the old one goes on serving, whole, and Status says so. Where
//     there is none, or where serving it would mean to skip a policy that is
//     on disk, every call is refused with TOOL_BROKEN.
//   - A tool that had a policy is never without one by accident: that it had
//     one is remembered in the state folder, and until a policy loads again
//     or tool.json confirms that it is meant to have none, it is TOOL_BROKEN.
//   - Nothing outside tools.d and the restricted folder is read, whatever
//     symlinks say; a tool whose folder is a link out of tools.d is
//     UNKNOWN_TOOL.
//   - A removed folder is UNKNOWN_TOOL from the next Acquire on.
//
// What is not: a folder that is changed file by file, slower than Settle
// apart, is read as it stands in between. Rename whole files, or better the
// whole folder, into place.
//
// The host's pipeline calls Acquire; the admin socket calls List.
package tools
